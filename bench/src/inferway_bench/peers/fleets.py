"""The engines that all routers of a run stand in front of: simulated ones, or real vLLM."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from inferway_bench.machine import CPUINFO, vllm_dtype
from inferway_bench.peers.plan import RealEngines, SimulatedEngines
from inferway_bench.processes import (
    BenchError,
    answers,
    free_port,
    get,
    request,
    running,
    wait_until,
)
from inferway_bench.progress import OnStep
from inferway_bench.routers import EngineAddress, read_metrics, total
from inferway_sim.prepare import prepare_smollm2

MODEL = "smollm2"  # as clients call it
_START_SECONDS = 240.0  # a real engine takes 35 on two idle cores
_WARM_UP_PROMPTS = 12

_REAL_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines that run."""

    engines: Sequence[EngineAddress]
    block_size: int

    def reset(self) -> None:
        """Forget all cached prefixes, and let the routers hear it: an engine publishes what has
        happened with its next step. Raises BenchError when an engine does not become idle."""
        for engine in self.engines:
            wait_until(partial(_is_idle, engine.url), f"{engine.url} to be idle")
            request(f"{engine.url}/reset_prefix_cache", b"")
        for engine in self.engines:
            _complete(engine.url, [1, 2, 3], max_tokens=1)


def _is_idle(url: str) -> bool:
    metrics = read_metrics(get(f"{url}/metrics").decode())
    return not any(total(metrics, f"vllm:num_requests_{of}") for of in ("running", "waiting"))


@contextmanager
def started(
    engines: SimulatedEngines | RealEngines, vllm: Path | None, directory: Path, on_step: OnStep
) -> Iterator[Fleet]:
    """Start engines; `vllm` starts real ones, by default that of INFERWAY_VLLM_VENV. Raises
    BenchError when one does not start."""
    on_step(f"starting {engines.engines} engines")
    if isinstance(engines, SimulatedEngines):
        fleet = simulated_fleet(engines, directory)
    else:
        venv = os.environ.get("INFERWAY_VLLM_VENV")
        vllm = Path(venv) / "bin" / "vllm" if vllm is None and venv else vllm
        if vllm is None:
            raise BenchError("real engines: whose vllm is not said; fix: --vllm PATH")
        fleet = real_fleet(engines, vllm, directory)
    with fleet as running_fleet:
        yield running_fleet


@contextmanager
def simulated_fleet(spec: SimulatedEngines, directory: Path) -> Iterator[Fleet]:
    """Start processes of `inferway simulate`. Raises BenchError when one does not start."""
    model = str(prepare_smollm2())
    executable = str(Path(sys.executable).with_name("inferway"))
    with ExitStack() as stack:
        started = []
        for number in range(spec.engines):
            command = [executable, "simulate", "--port", "0", "--model", model, *spec.flags()]
            command += ["--served-model-name", MODEL, "--seed", str(number), "--enable-scale-out"]
            log = directory / f"engine-{number}.log"
            started.append((stack.enter_context(running(command, log)), log))
        for process, log in started:
            wait_until(lambda log=log: bool(_url_in(log)), "a simulated engine", process, log)  # type: ignore[misc]
        yield Fleet([_address(_url_in(log)) for _, log in started], spec.block_size)


@contextmanager
def real_fleet(spec: RealEngines, vllm: Path, directory: Path) -> Iterator[Fleet]:
    """Start vLLM on the CPU, with SmolLM2. Raises BenchError when an engine does not start."""
    if not vllm.is_file():
        raise BenchError(
            f"{vllm}: not there; fix: scripts/install_vllm.sh, and its environment's bin/vllm "
            "with --vllm"
        )
    model = str(prepare_smollm2(weights=True))
    with ExitStack() as stack:
        started = []
        for number in range(spec.engines):
            port, log = free_port(), directory / f"engine-{number}.log"
            command = [str(vllm), "serve", model, "--port", str(port), *spec.flags()]
            command += ["--served-model-name", MODEL, "--enable-scale-out"]
            command += ["--host", "127.0.0.1", "--kv-events-config", _kv_events()]
            process = stack.enter_context(running(command, log, _REAL_ENVIRONMENT))
            started.append((process, log, f"http://127.0.0.1:{port}"))
        for process, log, url in started:
            healthy = partial(answers, f"{url}/health")
            wait_until(healthy, f"the engine {url}", process, log, seconds=_START_SECONDS)
        for *_, url in started:
            # The first prompts of each length are slow; no router is to learn from them.
            for number in range(1, 1 + _WARM_UP_PROMPTS):
                _complete(url, [number] * 100 * number, max_tokens=4)
        yield Fleet([_address(url) for *_, url in started], spec.block_size)


def real_engines(layers: int | None = None) -> RealEngines:
    """Return engines that compute as this machine's CPU does soonest; with all the model's layers,
    or with this number of them."""
    return RealEngines(dtype=vllm_dtype(CPUINFO.read_text()), layers=layers)


def _complete(url: str, prompt: Sequence[int], max_tokens: int) -> None:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens}
    request(f"{url}/v1/completions", msgspec.json.encode(body), seconds=60)


def _kv_events() -> str:
    """Without a topic: vllm-router 0.1.17 hears nothing of an engine that has one."""
    return json.dumps(
        {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{free_port()}",
            "replay_endpoint": f"tcp://*:{free_port()}",
            "topic": "",
        }
    )


def _url_in(log: Path) -> str:
    """Empty until the engine listens."""
    found = re.search(r"simulated engine (http://\S+) serves", log.read_text())
    return found[1] if found else ""


def _address(url: str) -> EngineAddress:
    source = msgspec.json.decode(get(f"{url}/kv_event_sources"))["0"]
    return EngineAddress(url, source["endpoint"].replace("*", "127.0.0.1"))
