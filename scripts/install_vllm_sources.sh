#!/bin/sh
# Unpacks the Python files of a vLLM release into .vllm-sources/VERSION, without its dependencies and
# its compiled kernels: with that folder on PYTHONPATH, the interpreter of .venv-vllm runs this
# version's request classes, templates and flags on the torch it has. For releases of which PyPI has
# no build for CPUs. Does nothing if that is done already; fails, never skips.
# INFERWAY_VLLM_VENV: where that environment is (scripts/install_vllm.sh).
#
#   install_vllm_sources.sh 0.33.0    downloads 340 MB, keeps 40 MB; 1 minute
set -eu

[ $# -eq 1 ] || { echo "usage: $0 VERSION, such as 0.33.0" >&2; exit 2; }
version=$1
cd "$(dirname "$0")/.."
python=${INFERWAY_VLLM_VENV:-.venv-vllm}/bin/python
needs=orjson==3.13.0 # what 0.33 imports, and the environment of 0.32 lacks
folder=.vllm-sources/$version
[ -d "$folder" ] && exit 0 # its last step gives it this name

if ! "$python" -c '' 2>/dev/null; then
    echo "$python is not there, and runs these sources; make it: ./scripts/install_vllm.sh" >&2
    exit 1
fi
mkdir -p .vllm-sources
work=$(mktemp -d ".vllm-sources/.unpacking.XXXXXX")
trap 'rm -rf "$work"' EXIT
log=$PWD/.vllm-sources/install.log

. ./scripts/step.sh

download() {
    "$python" -m pip download --disable-pip-version-check --no-deps --no-cache-dir --dest "$work" \
        --only-binary=:all: --platform=manylinux_2_28_x86_64 "vllm==$version" || {
        echo "no wheel of vllm $version for manylinux_2_28_x86_64: there is no such release, or PyPI" \
            "cannot be reached; give a release, or a folder that has the wheel: PIP_NO_INDEX=1" \
            "PIP_FIND_LINKS=/folder $0 $version"
        return 1
    }
}

unpack() {
    "$python" - "$work" <<'PYTHON'
import sys, zipfile
from pathlib import Path

work = Path(sys.argv[1])
(wheel,) = work.glob("*.whl")
with zipfile.ZipFile(wheel) as packed:
    names = [name for name in packed.namelist() if name.endswith(".py")]
    packed.extractall(work / "sources", names)
print(len(names), "files")
PYTHON
}

step "downloading vllm $version" download
step "unpacking its Python files into $folder" unpack
step "installing $needs beside them" "$python" -m pip install --disable-pip-version-check --no-deps \
    --target "$work/sources" "$needs"
mv "$work/sources" "$folder"
