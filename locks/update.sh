#!/usr/bin/env bash
# Makes the lock files anew from pyproject.toml and locks/*.in: one for all supported Pythons and platforms, hashed,
# without index addresses. Extra arguments go to `uv pip compile`, such as --upgrade or --upgrade-package duckdb.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
"$python" -m venv "$tool"
"$tool/bin/pip" install --quiet --disable-pip-version-check uv==0.13.8

everywhere=(--universal --python-version 3.11)

build_requires() {
    "$python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'
}

compile() { # output, then options and inputs ("-" is standard input)
    local output=$1
    shift
    "$tool/bin/uv" pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
        --custom-compile-command "make lock" --output-file "$output" "$@"
    echo "$output: $(grep -c == "$output") packages"
}

# setuptools builds dolmen itself: locked like the rest, so that no build fetches an unpinned one.
build_requires | compile locks/dev.txt "${everywhere[@]}" "$@" --extra dev pyproject.toml -
# The others hold the versions that the tests ran on.
build_requires | compile locks/demo.txt "${everywhere[@]}" "$@" --extra demo --constraint locks/dev.txt pyproject.toml -
# The layer's wheels are fetched by whatever Python is at hand, and pip judges markers by that one: so none may be left.
compile locks/layer.txt --python-version 3.13 --python-platform x86_64-manylinux_2_28 "$@" \
    --constraint locks/dev.txt locks/layer.in
# The jobs' wheels are fetched in the same way, for the Pythons of EMR Serverless and of Glue.
for jobs_python in 3.11 3.13; do
    compile "locks/jobs-$jobs_python.txt" --python-version "$jobs_python" --python-platform x86_64-manylinux_2_28 "$@" \
        --constraint locks/dev.txt locks/jobs.in
done
compile locks/sam.txt "${everywhere[@]}" "$@" locks/sam.in
compile locks/iceberg.txt "${everywhere[@]}" "$@" locks/iceberg.in
build_requires | compile locks/dbt.txt "${everywhere[@]}" "$@" --extra dbt pyproject.toml locks/dbt.in -
compile locks/peers.txt "${everywhere[@]}" "$@" locks/peers.in
compile locks/lint.txt "${everywhere[@]}" "$@" locks/lint.in
compile locks/docs.txt "${everywhere[@]}" "$@" --constraint locks/dev.txt locks/docs.in
compile locks/release.txt "${everywhere[@]}" "$@" locks/release.in
