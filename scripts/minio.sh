#!/usr/bin/env bash
# MinIO, a real S3 server, for running dolmen on one machine and for its tests.
#
#   scripts/minio.sh install          builds it once (Go's own `go install`), says where it is
#   scripts/minio.sh install --try    the same, but only says so where it can't be built, for want of Go for one
#   scripts/minio.sh path             where it is; fails, and says why, if it is not installed
#   scripts/minio.sh start [folder]   runs it on a folder (.local/minio), until Ctrl-C
#
# For `start`: MINIO_ADDRESS (127.0.0.1:9000), MINIO_ROOT_USER and MINIO_ROOT_PASSWORD (dolmen, dolmen-local; 8 letters
# at least), MINIO_BUCKETS to have (dolmen-local and my-landing-bucket, of which the samples in events/ speak).
set -euo pipefail
cd "$(dirname "$0")/.."

# Upstream no longer publishes builds; this is its last commit.
version=v0.0.0-20260212201848-7aac2a2c5b7c
go_needed=1.24
# Outside the checkout, so that the next clean one finds it: building takes minutes.
folder=${XDG_CACHE_HOME:-${HOME:-$PWD}/.cache}/dolmen/minio/$version
binary=$folder/minio

go_version() { GOTOOLCHAIN=local go env GOVERSION 2>/dev/null | sed 's/^go//'; }

# Whether version $1 is at least $2 (major.minor).
at_least() {
    local found=$1 wanted=$2
    local major=${found%%.*} rest=${found#*.}
    local minor=${rest%%[!0-9]*}
    [ "$major" -gt "${wanted%%.*}" ] || { [ "$major" -eq "${wanted%%.*}" ] && [ "${minor:-0}" -ge "${wanted#*.}" ]; }
}

why_not() {
    local found
    if ! command -v go >/dev/null; then
        echo "MinIO is built with Go $go_needed or newer, and there is no go on PATH."
    elif ! found=$(go_version) || ! at_least "$found" "$go_needed"; then
        echo "MinIO is built with Go $go_needed or newer, and $(command -v go) is ${found:-none that works}."
    else
        return 1
    fi
    echo "Install it, for instance: brew install go, apt install golang-go (where that is new enough), or https://go.dev/dl"
}

# In a shell of its own, whose end removes what is half done; each step says when it fails, for `set -e` means nothing
# where the caller asks whether it worked.
install() (
    if [ -x "$binary" ]; then
        exit
    fi
    if why_not >&2; then
        exit 1
    fi
    echo "Building MinIO $version into $folder (once; a few minutes)" >&2
    mkdir -p "$folder" && building=$(mktemp -d "$folder/building-XXXXXX") || exit 1
    trap 'rm -rf "$building"' EXIT
    GOBIN=$building CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' "github.com/minio/minio@$version" || exit 1
    mv "$building/minio" "$binary" # whole or not at all, also for somebody who builds it at the same time
)

start() {
    local data=${1:-.local/minio}
    local address=${MINIO_ADDRESS:-127.0.0.1:9000}
    export MINIO_ROOT_USER=${MINIO_ROOT_USER:-dolmen} MINIO_ROOT_PASSWORD=${MINIO_ROOT_PASSWORD:-dolmen-local}
    install
    mkdir -p "$data"
    for bucket in ${MINIO_BUCKETS-dolmen-local my-landing-bucket}; do
        mkdir -p "$data/$bucket" # on a single folder, a bucket is one in it
    done
    cat <<END
MinIO on http://$address, data in $data. Ctrl-C ends it; what is there stays.
For another shell:

export AWS_ENDPOINT_URL_S3=http://$address
export AWS_ACCESS_KEY_ID=$MINIO_ROOT_USER
export AWS_SECRET_ACCESS_KEY=$MINIO_ROOT_PASSWORD
export AWS_DEFAULT_REGION=us-east-1

END
    # No console and no look for newer releases: there are none.
    MINIO_BROWSER=off MINIO_UPDATE=off exec "$binary" server --quiet --address "$address" "$data"
}

case ${1:-} in
install)
    if install; then
        echo "MinIO: $binary"
    elif [ "${2:-}" = --try ]; then
        echo "There is no MinIO, so the tests against it are left out."
    else
        exit 1
    fi
    ;;
path)
    if [ ! -x "$binary" ]; then
        echo "MinIO is not installed; make minio-install does it." >&2
        why_not >&2 || true
        exit 1
    fi
    echo "$binary"
    ;;
start)
    start "${2:-}"
    ;;
*)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p;}' "$0" >&2
    exit 2
    ;;
esac
