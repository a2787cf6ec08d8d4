"""`inferway bench ray`: Inferway's router in Ray Serve beside Ray's own routers.

Each seed starts Ray anew for each router, with the same simulated engines, sends it chats of
another seed, and then the chats that are measured: the same for each router. Who comes first
changes from seed to seed. Routers have stopwatches around their choice of a replica.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import uvloop

from inferway_bench.cpu import cpu_seconds
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import Pacing, drive, without_collections
from inferway_bench.loading.samples import Sample
from inferway_bench.peers.fleets import MODEL
from inferway_bench.peers.measuring import figures
from inferway_bench.peers.plan import SimulatedEngines
from inferway_bench.peers.workload import ChatSpec, chats
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.ray_serve.worker import Deployed
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Goal, Row, Run, Value, goal

OURS, DEFAULT, PREFIX = "inferway", "Ray's power of two", "Ray's prefix-aware"
ROUTERS = {OURS: "TimedInferway", PREFIX: "TimedPrefixAware", DEFAULT: "TimedDefault"}
LEAST_TIMES_CACHED, MOST_MORE_US = 1.2, 300.0
_WARM_UP_SEED = 2_000
ONE_SYSTEM = "ray --systems 1"
_CURE = (
    "fix: pip install 'inferway[ray]' pyarrow; or, in a checkout, scripts/install_ray.sh, and"
    " then .venv-ray/bin/inferway in place of this command"
)


class RayPlan(msgspec.Struct, frozen=True):
    """How many engines and chats, and how fast they come."""

    # fmt: off
    seeds: Annotated[int, flag("Measure each router with this number of seeds.", ge=1)] = 3
    rate: Annotated[float, flag("Send this number of requests a second.", gt=0)] = 8.0
    engines: Annotated[int, flag("Run this number of engines, each a replica.", ge=2)] = 4
    systems: Annotated[int, flag("Share this number of system prompts among the chats.", ge=1)] = 4
    # fmt: on
    sessions: int = 48
    warm_up_requests: int = 60
    answer_seconds: float = 120.0

    @property
    def chats(self) -> ChatSpec:
        return ChatSpec(
            sessions=self.sessions, turns=5, systems=self.systems, system_chars=1000, apart=12
        )

    @property
    def fleet(self) -> SimulatedEngines:
        return SimulatedEngines(engines=self.engines)


@dataclass(frozen=True, slots=True)
class RunningRay:
    """A router of a Ray that runs."""

    url: str
    timings: Path

    def carry(self, plan: RayPlan, seed: int, tag: str, most: int | None = None) -> list[Sample]:
        """Send chats, and return what came of each request."""
        sessions = chats(plan.chats, seed, tag, plan.rate, most)
        target = Target(self.url, timeout=plan.answer_seconds)
        with without_collections():
            return uvloop.run(drive(target, sessions, Pacing(None), model=MODEL)).samples

    def timed(self, since: int = 0) -> list[tuple[int, int, int]]:
        """Return process, wall and CPU time, ns, of each request routed since so many."""
        lines = self.timings.read_text().splitlines()[since:] if self.timings.exists() else []
        return [(int(pid), int(wall), int(cpu)) for pid, wall, cpu in map(str.split, lines)]


@contextmanager
def deployed(router: str, plan: RayPlan, directory: Path) -> Iterator[RunningRay]:
    """Run Ray with this router until the end of the block. Raises BenchError if it does not
    start."""
    timings, log = directory / "timings.txt", directory / "ray.log"
    simulate = [*plan.fleet.flags(), "--served-model-name", MODEL]
    what = Deployed(ROUTERS[router], plan.engines, simulate, str(timings))
    command = [sys.executable, "-m", "inferway_bench.ray_serve.worker"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, msgspec.json.encode(what).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert process.stdout is not None
            url = next((line for line in process.stdout if line.startswith("http")), None)
            if url is None:
                said = log.read_text(errors="replace")[-800:]
                raise BenchError(f"Ray with {router} did not start: {said}")
            yield RunningRay(url.strip(), timings)
        finally:
            try:
                process.communicate("", timeout=60)  # its standard input ends
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def measure(plan: RayPlan, on_step: OnStep) -> Findings:
    """Measure all routers. Raises BenchError when Ray is not there, does not start, or answers
    nothing."""
    ray = _ray_version()
    found: dict[str, list[dict[str, float]]] = {router: [] for router in ROUTERS}
    order, total = list(ROUTERS), plan.seeds * len(ROUTERS)
    for seed in range(plan.seeds):
        first = seed % len(order)
        for number, router in enumerate([*order[first:], *order[:first]]):
            on_step(f"{router}, seed {seed}", seed * len(order) + number, total)
            with TemporaryDirectory(prefix="inferway-ray-") as name:
                found[router].append(_measured(router, plan, seed, Path(name)))
    rows = [
        Row("routers", {"router": router}, _columns(seeds), is_ours=router == OURS)
        for router, seeds in found.items()
    ]
    about = (
        f"Ray {ray}; {plan.fleet.about}. Each seed has {plan.sessions} chats of 5 turns with "
        f"{plan.systems} system prompts, in all {plan.chats.requests} requests, {plan.rate:g} a "
        "second, behind Ray's proxy and one ingress replica, whose handle has the router. Each "
        "seed starts Ray anew for each router. Routing is the time in the router's "
        "`choose_replicas` and `on_request_routed`: by the clock, and of the CPU."
    )
    return Findings(
        rows=rows,
        about=[about],
        facts={"ray": ray, "requests": plan.chats.requests},
        seeds=list(range(plan.seeds)),
    )


def _measured(router: str, plan: RayPlan, seed: int, directory: Path) -> dict[str, float]:
    with deployed(router, plan, directory) as one:
        one.carry(plan, _WARM_UP_SEED + seed, f"warm-{seed}", plan.warm_up_requests)
        warm = one.timed()
        if not warm:
            said = (directory / "ray.log").read_text(errors="replace")[-800:]
            raise BenchError(f"{router}: no request was routed: {said}")
        front = warm[0][0]
        before = cpu_seconds(front)
        samples = one.carry(plan, seed, f"{seed}")
        used = cpu_seconds(front) - before
        timed = one.timed(since=len(warm))
    if not any(sample.ok for sample in samples):
        raise BenchError(f"{router}: no request was answered: {samples[0].detail}")
    found = figures(plan.chats.requests, samples)
    found["routing_us"] = round(median(wall for _, wall, _ in timed) / 1e3, 1)
    found["routing_cpu_us"] = round(fmean(cpu for _, _, cpu in timed) / 1e3, 1)
    found["ingress_cpu_ms"] = round(used * 1e3 / len(timed), 2)
    return found


def _columns(seeds: Sequence[dict[str, float]]) -> dict[str, Value]:
    return {name: [each[name] for each in seeds] for name in seeds[0]}


def _ray_version() -> str:
    try:
        version("pyarrow")  # Ray's prefix-aware router
        return version("ray")
    except PackageNotFoundError as e:
        raise BenchError(f"{e.name} is not installed beside {sys.executable}; {_CURE}") from e


def goals(run: Run) -> list[Goal]:
    """Judge what is cached beside Ray's prefix-aware router, and how much longer routing takes than
    Ray's default; seed by seed."""
    ours = run.find("routers", router=OURS)
    default = run.find("routers", router=DEFAULT)
    prefix = run.find("routers", router=PREFIX)
    if ours is None or default is None or prefix is None:
        return []
    times = [a / b for a, b in _pairs(ours, prefix, "cached")]
    more = [a - b for a, b in _pairs(ours, default, "routing_us")]
    cpu = [a - b for a, b in _pairs(ours, default, "routing_cpu_us")]
    return [
        goal(f"cached tokens / those of {PREFIX}", times, least=LEAST_TIMES_CACHED),
        goal(
            f"routing minus that of {DEFAULT}", more, most=MOST_MORE_US, form="{:,.0f}", unit=" µs"
        ),
        goal(
            f"CPU time of routing minus that of {DEFAULT}",
            cpu,
            most=MOST_MORE_US,
            form="{:,.0f}",
            unit=" µs",
        ),
    ]


def _pairs(one: Row, other: Row, column: str) -> Iterator[tuple[float, float]]:
    return zip(one.repeats(column), other.repeats(column), strict=True)


_MS = "{:,.0f}"
RAY = Benchmark(
    "ray",
    "Compare Inferway's router in Ray Serve with Ray's own, in front of simulated engines.",
    RayPlan,
    measure,
    [
        Table(
            "routers",
            "{requests} requests a seed; for each, TTFT, routing, and CPU time of the ingress",
            ["router"],
            [
                Column("cached", "cached, %", "{:.1f}", "mean", "higher", "%"),
                Column("ttft_ms", "TTFT, ms", _MS, "mean", "lower", "ms"),
                Column("p90_ms", "p90, ms", _MS, "mean alone"),
                Column("routing_us", "routing, µs", _MS, "range", "lower", "µs"),
                Column("routing_cpu_us", "of the CPU, µs", _MS, "range", "lower", "µs"),
                Column("ingress_cpu_ms", "ingress CPU, ms", "{:.1f}", "range"),
                Column("errors", form=_MS, shown="sum"),
            ],
        ),
    ],
    quick={"seeds": 1, "sessions": 16},
    goals=goals,
    question="how many prompt tokens come from caches, and what routing costs, with Inferway's "
    "router in Ray Serve and with Ray's own",
    takes="15 minutes",
    run_name=lambda plan: ONE_SYSTEM if plan.systems == 1 else "ray",
)
ray = RAY.command()
RAY_ONE_SYSTEM = replace(
    RAY,
    name=ONE_SYSTEM,
    question="the same, where all chats begin alike, with one system prompt",
)
