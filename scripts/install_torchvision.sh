#!/bin/sh
# Makes .venv-vllm-torchvision: what vLLM's processors of pictures import, for the fleet's tests of vision models. It
# is a folder for PYTHONPATH beside the environment of vLLM (scripts/install_vllm.sh), which must be there first and
# stays as it is. The wheel on PyPI is for CUDA, and fails to import beside a CPU torch because two operators are
# missing; a sitecustomize.py that defines them is enough. 20 MB, 5 s. Does nothing if that is done already.
set -eu

TORCHVISION=0.28.0

cd "$(dirname "$0")/.."
engines=${INFERWAY_VLLM_VENV:-.venv-vllm}
case $engines in /*) ;; *) engines=$PWD/$engines ;; esac
folder=$engines-torchvision
stamp=$folder/.installed
log=$folder/install.log
wanted="torchvision $TORCHVISION, for $(cat "$engines/.installed")"

[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

. ./scripts/step.sh

define_operators() {
    cat >"$folder/sitecustomize.py" <<'PYTHON'
import torch

_library = torch.library.Library("torchvision", "DEF")
for _schema in (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
):
    _library.define(_schema)
PYTHON
}

check() {
    PYTHONPATH=$folder "$engines/bin/python" -c 'import torchvision.transforms.v2'
}

rm -rf "$folder"
mkdir -p "$folder"
step "installing torchvision $TORCHVISION into $folder" "$engines/bin/python" -m pip --disable-pip-version-check \
    install --no-deps --target "$folder" "torchvision==$TORCHVISION"
step "defining its operators" define_operators
step "importing it" check
echo "$wanted" >"$stamp"
