#!/usr/bin/env bash
# Runs the tests of Spark on other versions of it than the pinned one, each in an environment of its own (.venv-spark-*).
#
#   scripts/spark_versions.sh                                     3.5 and 4.0 on Python 3.11, 4.3 on Python 3.13
#   scripts/spark_versions.sh 4.2.1 4.0.5:python3.12              others: a version of PySpark, and on what Python
#
# PYTEST_FLAGS are pytest's. A Python that is not there is replaced by any that suits. The tests of Spark's own readers
# on S3 are left out: their jars are of the pinned version's Hadoop. Of 3.5, which has no data sources in Python, those
# of its message run, and those that read publications with Iceberg's runtime for it.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=("$@")
[ $# -gt 0 ] || wanted=(3.5.9:python3.11 4.0.5:python3.11 4.3.0:python3.13)

# The environment of one version: all that tests need from the lock, but for PySpark and what it brings.
environment() {
    local version=$1 python=$2 venv=.venv-spark-$1
    awk '/^[a-z]/ { wanted = !/^(pyspark|py4j)==/ } wanted' locks/dev.txt >"$venv.txt"
    if ! [ "$venv/.installed" -nt locks/dev.txt ] || ! [ "$venv/.installed" -nt pyproject.toml ]; then
        command -v "$python" >/dev/null && "$python" --version >/dev/null 2>&1 || python=
        PYTHON=$python locks/install.sh "$venv" "$venv.txt" --editable . simulator
        rm -f "$venv/.installed"
        "$venv/bin/python" -m pip install --quiet "pyspark==$version"
        touch "$venv/.installed"
    fi
    rm -f "$venv.txt"
}

failed=()
for each in "${wanted[@]}"; do
    version=${each%%:*}
    environment "$version" "$([[ $each = *:* ]] && echo "${each#*:}")"
    venv=.venv-spark-$version
    "$venv/bin/python" -c 'import pyspark, sys; print(f"PySpark {pyspark.__version__} on Python {sys.version.split()[0]}")'
    tests=(tests/spark tests/spark_cluster tests/spark_s3/test_workers.py tests/spark_s3/test_format.py)
    if [[ $version = 3.* ]]; then
        PYTHON=$venv/bin/python scripts/spark_jars.sh install iceberg
        tests=(tests/iceberg/test_old_spark.py tests/iceberg/test_histories.py tests/iceberg/test_defaults.py tests/docs/test_iceberg_recipes.py -k spark)
    fi
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pytest "${tests[@]}" ${PYTEST_FLAGS:-} || failed+=("$version")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "Tests failed on PySpark ${failed[*]}." >&2
    exit 1
fi
