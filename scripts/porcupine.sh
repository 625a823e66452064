#!/usr/bin/env bash
# The judge of recorded histories: porcupine, a checker of linearizability, with the model in tests/isolation/porcupine.
#
#   scripts/porcupine.sh install          builds it once, says where it is
#   scripts/porcupine.sh install --try    the same, but only says so where it can't be built, for want of Go for one
#   scripts/porcupine.sh path             where it is; fails, and says why, if it is not installed
set -euo pipefail
cd "$(dirname "$0")/../tests/isolation/porcupine"

go_needed=1.24
sources=(go.mod go.sum main.go)
# Outside the checkout, so that the next clean one finds it.
folder=${XDG_CACHE_HOME:-${HOME:-$PWD}/.cache}/dolmen/porcupine/$(cat "${sources[@]}" | cksum | tr ' ' '-')
binary=$folder/isolation

why_not() {
    local found
    if ! command -v go >/dev/null; then
        echo "Porcupine is built with Go $go_needed or newer, and there is no go on PATH."
    elif ! found=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null | sed 's/^go//') || [ -z "$found" ] ||
        [ "$(printf '%s\n' "$go_needed" "$found" | sort -V | head -n 1)" != "$go_needed" ]; then
        echo "Porcupine is built with Go $go_needed or newer, and $(command -v go) is ${found:-none that works}."
    else
        return 1
    fi
    echo "Install it, for instance: brew install go, apt install golang-go (where that is new enough), or https://go.dev/dl"
}

# In a shell of its own, whose end removes what is half done.
install() (
    if [ -x "$binary" ]; then
        exit
    fi
    if why_not >&2; then
        exit 1
    fi
    mkdir -p "$folder" && building=$(mktemp -d "$folder/building-XXXXXX") || exit 1
    trap 'rm -rf "$building"' EXIT
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$building/isolation" . || exit 1
    mv "$building/isolation" "$binary" # whole or not at all, also for somebody who builds it at the same time
)

case ${1:-} in
install)
    if install; then
        echo "Porcupine: $binary"
    elif [ "${2:-}" = --try ]; then
        echo "There is no porcupine, so the tests that judge histories by it are left out."
    else
        exit 1
    fi
    ;;
path)
    if [ ! -x "$binary" ]; then
        echo "Porcupine is not installed; make minio-install does it." >&2
        why_not >&2 || true
        exit 1
    fi
    echo "$binary"
    ;;
*)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p;}' "$0" >&2
    exit 2
    ;;
esac
