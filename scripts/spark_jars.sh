#!/usr/bin/env bash
# The jars by which Spark reads s3a:// by itself, and dolmen's tables natively on S3: for tests, and for one machine.
#
#   scripts/spark_jars.sh install          fetches them once from Maven Central (640 MB), checks them, says where they are
#   scripts/spark_jars.sh install --try    the same, but only says so where they can't be had, for want of a network for one
#   scripts/spark_jars.sh path             their class path; fails, and says why, if they are not there
#   scripts/spark_jars.sh install iceberg [--try], path iceberg    the same of the jar by which Spark reads Iceberg (48 MB),
#                                                                  which is another one for Spark 3.5
#
# They are hadoop-aws, of the version of Hadoop that the environment's PySpark brings, and the AWS SDK that it was built
# with; for a session, by spark.driver.extraClassPath and spark.executor.extraClassPath (docs/spark.md). PYTHON is the
# environment's interpreter (.venv/bin/python).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
hadoop=3.4.2
what=s3
if [ "${2:-}" = iceberg ]; then
    what=iceberg
    set -- "$1" "${@:3}"
fi
jars=(
    # organisation, name, version, SHA-256
    "org.apache.hadoop hadoop-aws $hadoop d2d24e6b715b5656b9d238bf13b6682a07e2004dd36aad74a73aeb854319f4d9"
    "software.amazon.awssdk bundle 2.29.52 62638f33045690c6bc5e496b54b0b2e89a9ad38cbedacdf6e017fea6bc85f55c"
)
# Outside the checkout, so that the next clean one finds them.
folder=${XDG_CACHE_HOME:-${HOME:-$PWD}/.cache}/dolmen/spark-jars/$hadoop
contents="hadoop-aws $hadoop and its AWS SDK" size="640 MB" reads="S3" remedy="make spark-jars fetches them"
if [ $what = iceberg ]; then
    jars=("org.apache.iceberg iceberg-spark-runtime-4.1_2.13 1.12.0 3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82")
    of_spark=4.1
    if [[ $("$python" -c 'from importlib.metadata import version; print(version("pyspark"))' 2>/dev/null) = 3.5.* ]]; then
        jars=("org.apache.iceberg iceberg-spark-runtime-3.5_2.12 1.12.0 8dd8c90e54ed1a20f2461309d047a255ee56382eb7c0a46162b27a4936fd86dc")
        of_spark=3.5
    fi
    folder=${folder%/*}/iceberg-1.12.0
    contents="Iceberg's runtime for Spark $of_spark" size="48 MB" reads="Iceberg" remedy="scripts/spark_jars.sh install iceberg fetches them"
fi

is_there() {
    local organisation name version
    while read -r organisation name version _; do
        [ -f "$folder/$name-$version.jar" ] || return 1
    done < <(printf '%s\n' "${jars[@]}")
}

java=${JAVA_HOME:+$JAVA_HOME/bin/}java

# The folder of PySpark's own jars, among which is Ivy, by which Spark itself fetches packages.
spark_folder() { "$python" -c 'import os, pyspark; print(os.path.join(os.path.dirname(pyspark.__file__), "jars"))' 2>/dev/null; }

why_not() {
    local found
    if ! "$java" -version >/dev/null 2>&1; then
        echo "Spark needs Java 17 or newer, and there is none: apt install openjdk-17-jre-headless, brew install openjdk"
    elif ! found=$(spark_folder); then
        echo "There is no PySpark in the environment of $python: make setup installs it."
    elif [ $what = s3 ] && [ ! -f "$found/hadoop-client-api-$hadoop.jar" ]; then
        echo "These jars are for Hadoop $hadoop, and the PySpark of $python brings another one."
    elif [ $what = iceberg ] && ! compgen -G "$found/spark-core_2.1?-$of_spark.*" >/dev/null; then
        echo "These jars are for Spark 3.5 and 4.1, and $python has another one."
    else
        return 1
    fi
}

# In a shell of its own, whose end removes what is half done; each step says when it fails, for `set -e` means nothing
# where the caller asks whether it worked.
install() (
    if is_there; then
        exit
    fi
    if why_not >&2; then
        exit 1
    fi
    echo "Fetching $contents into $folder (once; $size)" >&2
    mkdir -p "$folder" && fetching=$(mktemp -d "$folder/fetching-XXXXXX") || exit 1
    trap 'rm -rf "$fetching"' EXIT
    ivy=("$(spark_folder)"/ivy-*.jar)
    while read -r organisation name version digest; do
        jar=$name-$version.jar
        # Ivy tells its progress in dots, thousands of them.
        "$java" -jar "${ivy[0]}" -cache "$fetching/cache" -dependency "$organisation" "$name" "$version" \
            -notransitive -types jar -retrieve "$fetching/[artifact]-[revision].[ext]" >"$fetching/log" 2>&1 </dev/null || {
            grep -v '^\.*$' "$fetching/log" | cut -c1-200 | tail -n 20 >&2
            exit 1
        }
        found=$("$python" -c 'import hashlib, sys; print(hashlib.file_digest(open(sys.argv[1], "rb"), "sha256").hexdigest())' \
            "$fetching/$jar") || exit 1
        if [ "$found" != "$digest" ]; then
            echo "$jar is not the file it should be: its SHA-256 is $found, not $digest." >&2
            exit 1
        fi
        mv "$fetching/$jar" "$folder/$jar" || exit 1 # whole or not at all, also for somebody who does it at the same time
    done < <(printf '%s\n' "${jars[@]}")
)

class_path() {
    local name version
    while read -r _ name version _; do
        printf '%s:' "$folder/$name-$version.jar"
    done < <(printf '%s\n' "${jars[@]}") | sed 's/:$/\n/'
}

case ${1:-} in
install)
    if install; then
        echo "Spark's jars for $reads: $(class_path)"
    elif [ "${2:-}" = --try ]; then
        echo "There are no jars by which Spark reads $reads, so the tests that need them are left out."
    else
        exit 1
    fi
    ;;
path)
    if ! is_there; then
        echo "The jars by which Spark reads $reads are not there; $remedy." >&2
        why_not >&2 || true
        exit 1
    fi
    class_path
    ;;
*)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p;}' "$0" >&2
    exit 2
    ;;
esac
