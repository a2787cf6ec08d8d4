"""The engines that all routers of a run stand in front of, simulated ones or real vLLM; the routers
in front of them, one after the other, and what each load was like."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np
import uvloop

from inferway_bench.cpu import cpu_seconds, resident_bytes
from inferway_bench.loading.answers import Sample
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import Pacing, drive, without_collections
from inferway_bench.loading.generated import Session
from inferway_bench.machine import CPUINFO, vllm_dtype
from inferway_bench.peers.plan import RealEngines, Scenario, SimulatedEngines, chats
from inferway_bench.processes import (
    BenchError,
    OnStep,
    answers,
    free_port,
    get,
    in_turn,
    of_vllm,
    request,
    running,
    wait_until,
)
from inferway_bench.routers import (
    EngineAddress,
    Router,
    RunningRouter,
    place_for,
    read_metrics,
    running_router,
    since,
    under_way,
)
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
    return not under_way(read_metrics(get(f"{url}/metrics").decode()))


@contextmanager
def started(
    engines: SimulatedEngines | RealEngines, directory: Path, on_step: OnStep
) -> Iterator[Fleet]:
    """Start engines, real ones from the virtual environment INFERWAY_VLLM_VENV. Raises BenchError
    when one does not start."""
    on_step(f"starting {engines.engines} engines")
    if isinstance(engines, SimulatedEngines):
        fleet = simulated_fleet(engines, directory)
    else:
        fleet = real_fleet(engines, directory)
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
def real_fleet(spec: RealEngines, directory: Path) -> Iterator[Fleet]:
    """Start vLLM on the CPU, with SmolLM2. Raises BenchError when an engine does not start."""
    vllm = of_vllm("vllm")
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


_TIMEOUT = 120.0  # seconds that an answer may take
_WARM_UP_SEED = 2_000  # of chats that are not measured


def carry(one: RunningRouter, sessions: Sequence[Session]) -> Sequence[Sample]:
    """Send `sessions` through a router at their times, and return what its answers were like."""
    with without_collections():
        target = Target(one.url, timeout=_TIMEOUT)
        return uvloop.run(drive(target, sessions, Pacing(), model=MODEL)).samples


def measured(one: RunningRouter, requests: int, sessions: Sequence[Session]) -> dict[str, float]:
    """Send `sessions`, which have this number of requests, and return figures of their answers, and
    the CPU time of the router for each request and its memory. Raises BenchError if no request was
    answered."""
    before = cpu_seconds(one.pid)
    samples = carry(one, sessions)
    used = cpu_seconds(one.pid) - before
    if not any(sample.ok for sample in samples):
        said = next((s.detail or s.error for s in samples), "")
        raise BenchError(f"{one.label}: no request was answered: {said}")
    found = figures(requests, samples)
    found["cpu_ms"] = round(used * 1e3 / (requests - found["errors"]), 4)
    found["mib"] = round(resident_bytes(one.pid) / 2**20, 1)
    return found


class Cell(NamedTuple):
    """One router, one load, one seed, and what `figures` says of it."""

    router: str
    load: float
    seed: int
    is_ours: bool
    figures: dict[str, float]


@dataclass(slots=True)
class RouterTrials:
    """All routers in front of one fleet. It collects `cells` and what each router says it did."""

    scenario: Scenario
    fleet: Fleet
    directory: Path
    on_step: OnStep
    cells: list[Cell] = field(default_factory=list)
    evidence: dict[str, str] = field(default_factory=dict)

    def measure(
        self, routers: Sequence[Router], seeds: int, loads: Sequence[float], rate: float
    ) -> None:
        """Measure every router, load and seed."""
        total = len(routers) * len(loads) * seeds
        for seed in range(seeds):
            for router in in_turn(routers, seed):
                directory = self.directory / f"{seed}-{routers.index(router)}"
                place = place_for(self.fleet.engines, MODEL, directory, self.fleet.block_size)
                with running_router(router, place, router.is_ready) as one:
                    self._measure_loads(one, seed, loads, rate, total)

    def _measure_loads(
        self, one: RunningRouter, seed: int, loads: Sequence[float], rate: float, total: int
    ) -> None:
        self.on_step(f"warming up {one.label}")
        spec, first = self.scenario.chats, self.scenario.warm_up_requests
        carry(one, chats(spec, _WARM_UP_SEED + seed, f"warm-{seed}", rate, first))
        before = one.router.counters(one.place)
        for load in loads:
            self.on_step(f"{one.label} at {load:.0%}, seed {seed}", len(self.cells), total)
            self.fleet.reset()
            sessions = chats(spec, seed, f"{seed}-{load:g}", load * rate)
            found = measured(one, spec.requests, sessions)
            self.cells.append(Cell(one.label, load, seed, one.router.is_ours, found))
        counted = since(before, one.router.counters(one.place))
        self.evidence[one.label] = one.router.evidence(counted)


def figures(requests: int, samples: Iterable[Sample]) -> dict[str, float]:
    """Return what the answered ones of `requests` were like: TTFT from the intended time, the mean
    time between tokens, answers a second from the first intended time to the last answer's end, and
    the share of prompt tokens that engines found cached. Errors are those not answered whole, or
    never sent, because the turn before was not."""
    good = [sample for sample in samples if sample.ok]
    firsts = np.array([sample.ttft for sample in good], float) * 1e3
    p50, p90, p99 = np.percentile(firsts, (50, 90, 99)).tolist()
    seconds = max(s.ended for s in good) - min(s.intended for s in good)
    asked = sum(sample.prompt_tokens or 0 for sample in good)
    found = {
        "ttft_ms": float(firsts.mean()),
        "p50_ms": p50,
        "p90_ms": p90,
        "p99_ms": p99,
        "itl_ms": fmean([s.itl for s in good if s.itl is not None] or [0.0]) * 1e3,
        "per_second": len(good) / seconds,
        "cached": 100 * sum(s.cached_tokens or 0 for s in good) / asked if asked else 0.0,
    }
    rounded = {name: round(value, 3) for name, value in found.items()}
    return rounded | {"errors": requests - len(good)}
