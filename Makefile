# A fresh machine needs python3 (3.11 or newer) and make; nothing else.
# PYTHON=… picks the interpreter. HTTP_PORT, MODEL_NAME, BLOCK_SIZE and HF_TOKEN reach the demo,
# from the environment or as `make demo HTTP_PORT=9000`. ARGS="…" is handed to the command run.

.DEFAULT_GOAL := help
.PHONY: help demo detect-python check test fleet bench-route clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1@\2/p' $(MAKEFILE_LIST) | \
		while IFS=@ read -r name what; do printf '  make %-14s %s\n' "$$name" "$$what"; done

demo:  ## an embedded fleet, the three phases, then a live server until Ctrl-C
	@./scripts/install.sh run
	@exec .venv/bin/python scripts/foreground.py .venv/bin/inferway demo $(ARGS)

detect-python:  ## which interpreter is used, and why
	@./scripts/detect_python.sh

check:  ## format, lint, types, import order
	@./scripts/install.sh dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/pytest -q tests/test_architecture.py

test:  ## everything that needs no vLLM
	@./scripts/install.sh dev
	.venv/bin/pytest -m "not fleet" $(ARGS)

fleet:  ## against real vLLM engines on the CPU
	@./scripts/install.sh dev
	./scripts/fleet.sh $(ARGS)

bench-route:  ## CPU time per routed request, beside its peers
	@./scripts/install.sh dev
	.venv/bin/inferway bench route $(ARGS)

clean:  ## removes .venv and every cache; keeps .venv-vllm and the models in ~/.cache/inferway
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
