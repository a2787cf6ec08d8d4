#!/bin/sh
# Makes .venv and installs this checkout into it, editable. Does nothing if that is done already.
# VENV=… names another directory of this checkout, for another Python beside it.
#
#   install.sh run    what `inferway` needs
#   install.sh dev    that, inferway-bench, and what checks and tests need
#
# One line a step; pip's own words go to .venv/install.log and are shown when a step fails.
set -eu

what=$1
cd "$(dirname "$0")/.."
here=$(pwd -P) # as venv writes it, however we were reached
venv=${VENV:-.venv}
stamp=$venv/.installed # what was installed, and from which pyproject.toml
log=$here/$venv/install.log
pyproject=$(cat pyproject.toml */pyproject.toml | cksum)

# Does .venv run, is it new enough, and was it made in this very directory?
venv_is_sound() {
    PYTHON="$here/$venv/bin/python" ./scripts/detect_python.sh --path >/dev/null 2>&1 &&
        grep -qF "$here/$venv/" "$venv/bin/pip" 2>/dev/null
}

is_installed() {
    [ -f "$stamp" ] && { [ "$(cat "$stamp")" = "$what $pyproject" ] || [ "$(cat "$stamp")" = "dev $pyproject" ]; }
}

. ./scripts/step.sh

if ! venv_is_sound; then
    python=$(./scripts/detect_python.sh --path)
    [ ! -e "$venv" ] || echo "replacing $venv: its Python is gone, too old, or belongs to another directory"
    rm -rf "$venv"
    mkdir "$venv"
    step "making $venv with $python" "$python" -m venv "$venv"
fi
is_installed && exit 0

set -- --editable ./structured --editable .
[ "$what" = run ] || set -- --editable ./structured --editable ".[$what]" --editable ./bench
rm -f "$stamp"
: >"$log"
step "installing inferway ($what) and its dependencies" \
    "$venv/bin/python" -m pip install --disable-pip-version-check "$@"
echo "$what $pyproject" >"$stamp"
