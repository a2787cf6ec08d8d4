#!/bin/sh
# Makes .venv-ray: Ray Serve, for the tests of `inferway_ray`. It borrows what is installed in .venv
# (scripts/install.sh dev), which must be there first and stays as it is, and this checkout; what Ray needs besides is
# installed beside it: 400 MB, a minute. .venv-ray/bin/inferway is the command there. Does nothing if that is done
# already.
set -eu

RAY=2.60.0

cd "$(dirname "$0")/.."
here=$(pwd -P)
venv=${INFERWAY_RAY_VENV:-.venv-ray}
case $venv in /*) ;; *) venv=$here/$venv ;; esac
stamp=$venv/.installed
log=$venv/install.log
wanted="ray $RAY beside $(cat .venv/.installed)"

[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

. ./scripts/step.sh

borrow_packages() {
    .venv/bin/python -m venv "$venv" || return
    purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    {
        printf '%s\n' "$here/src" "$here/structured/src" "$here/bench/src"
        .venv/bin/python -c "$purelib"
    } >"$("$venv/bin/python" -c "$purelib")/borrowed.pth"
    printf '#!%s\nfrom inferway.cli import main\n\nmain()\n' "$venv/bin/python" >"$venv/bin/inferway"
    chmod +x "$venv/bin/inferway"
}

rm -rf "$venv"
mkdir -p "$venv"
step "making $venv beside .venv" borrow_packages
step "installing ray[serve] $RAY" \
    "$venv/bin/python" -m pip --disable-pip-version-check install "ray[serve]==$RAY"
echo "$wanted" >"$stamp"
