#!/bin/sh
# Makes .venv-guidellm: the load generator guidellm, for the fleet's tests. It borrows torch and
# transformers from the environment of vLLM (scripts/install_vllm.sh), which must be there first, and
# installs what is missing beside them. Does nothing if that is done already.
set -eu

GUIDELLM=0.8.1

cd "$(dirname "$0")/.."
engines=${INFERWAY_VLLM_VENV:-.venv-vllm}
case $engines in /*) ;; *) engines=$PWD/$engines ;; esac
venv=$engines-guidellm
stamp=$venv/.installed
log=$venv/install.log
wanted="guidellm $GUIDELLM beside $(cat "$engines/.installed")"

[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

. ./scripts/step.sh

borrow_packages() {
    "$engines/bin/python" -m venv "$venv" || return
    "$engines/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth"
}

rm -rf "$venv"
mkdir -p "$venv"
step "making $venv beside vLLM's environment" borrow_packages
step "installing guidellm $GUIDELLM" \
    "$venv/bin/python" -m pip --disable-pip-version-check install "guidellm==$GUIDELLM"
echo "$wanted" >"$stamp"
