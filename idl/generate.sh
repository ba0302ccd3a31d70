#!/bin/sh
# Writes the Python stubs of downpour.thrift into a folder (the package's own, unless one is named).
# The compiler makes an empty __init__.py on the way down the namespace; only its last folder is kept.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${1:-$here/../src/downpour/network/rpc/generated}
thrift=${THRIFT:-thrift}
"$thrift" --version | grep -q ' 0\.24\.' || {
  echo "generate.sh: THRIFT must name the compiler of version 0.24, not: $("$thrift" --version)" >&2
  exit 2
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$thrift" --gen py:slots,enum,type_hints -out "$work" "$here/downpour.thrift"
mkdir -p "$target"
cp "$work"/downpour/network/rpc/generated/*.py "$target"/
