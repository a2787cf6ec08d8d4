#!/bin/sh
# Makes .venv-vllm-nixl: NIXL, by which vLLM's NixlConnector hands KV blocks from engine to engine, for the
# fleet's tests. It is a folder for PYTHONPATH beside the environment of vLLM (scripts/install_vllm.sh), which
# must be there first and stays as it is: an engine that is not given the folder has no NIXL. Its build for
# CUDA 12 is the one that loads without CUDA; `nixl` alone would bring the one for CUDA 13 as well. 241 MB,
# 10 s. Does nothing if that is done already.
#
# NIXL's Python has the thread of each engine that moves blocks ask for work without a pause, which takes a
# whole core. Engines of tests share two, with all that is tested: there it waits for work, and looks each
# millisecond.
set -eu

NIXL=1.5.1

cd "$(dirname "$0")/.."
engines=${INFERWAY_VLLM_VENV:-.venv-vllm}
case $engines in /*) ;; *) engines=$PWD/$engines ;; esac
folder=$engines-nixl
stamp=$folder/.installed
log=$folder/install.log
wanted="nixl $NIXL, waiting, for $(cat "$engines/.installed")"

[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

. ./scripts/step.sh

wait_for_work() {
    sed -i 's/agent_config\.pthrDelay = 0$/agent_config.pthrDelay = 1000  # microseconds/' "$1"
    grep -q 'pthrDelay = 1000 ' "$1"
}

check() {
    PYTHONPATH=$folder "$engines/bin/python" -c '
from nixl._api import nixl_agent, nixl_agent_config
nixl_agent("check", nixl_agent_config(backends=["UCX"]))'
}

rm -rf "$folder"
mkdir -p "$folder"
step "installing nixl $NIXL into $folder" "$engines/bin/python" -m pip --disable-pip-version-check \
    install --no-deps --target "$folder" "nixl==$NIXL" "nixl-cu12==$NIXL"
step "having it wait for work" wait_for_work "$folder/nixl_cu12/_api.py"
step "making an agent" check
echo "$wanted" >"$stamp"
