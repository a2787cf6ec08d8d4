#!/bin/sh
# Inferway against two real vLLM engines on the CPU. Arguments go to pytest.
# INFERWAY_VLLM_VENV: where the engines' environment is, or will be made (default .venv-vllm).
set -eu

cd "$(dirname "$0")/.."
./scripts/install_vllm.sh
./scripts/install_vllm_sources.sh 0.33.0
./scripts/install_guidellm.sh
./scripts/install_nixl.sh
./scripts/install_torchvision.sh
.venv/bin/inferway model prepare smollm2 --weights
exec .venv/bin/pytest -m fleet --durations=25 tests/engines "$@"
