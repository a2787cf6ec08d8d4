"""What a router adds to the time to the first token: open loop, the same rate for all, far from
saturation; with the same load on an engine itself beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from inferway.bench import conversations
from inferway.bench.chat_overhead.fleet import send_planned
from inferway.bench.chat_overhead.workload import Planned
from inferway.bench.placed import Placed
from inferway.bench.processes import BenchError
from inferway.bench.progress import OnStep
from inferway.bench.proxy.pacing import set_pace
from inferway.bench.proxy.plan import Plan
from inferway.bench.proxy.results import DIRECT, Latency


def measure_latencies(
    ready: Sequence[Placed], model: str, rate: float, plan: Plan, on_step: OnStep
) -> list[Latency]:
    """Streams of one token, so that what is measured ends with it."""
    for one in ready:
        set_pace(one, 1, 0)
    places = [(DIRECT, ready[0].place.engines[0].url)]
    places += [(one.router.label, one.place.url) for one in ready]
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _ in places}
    with TemporaryDirectory(prefix="inferway-proxy-") as directory:
        for repeat in range(plan.repeats):
            planned = poisson(model, rate, plan.latency_seconds, repeat)
            # who comes first changes, so that what was before nobody's is everybody's
            for name, url in [*places[repeat % len(places) :], *places[: repeat % len(places)]]:
                on_step(f"latency at {rate:,.0f}/s: {name}, {repeat + 1} of {plan.repeats}")
                found[name].append(_measured(name, url, planned, Path(directory)))
    return [
        Latency(name, *([each[i] for each in values] for i in range(3)))
        for name, values in found.items()
    ]


def poisson(model: str, rate: float, seconds: float, seed: int) -> list[Planned]:
    """Requests that come as they like, `rate` a second; the same for all routers of a repeat."""
    rng, templates = random.Random(seed), conversations.short_chat(model, stream=True)
    planned: list[Planned] = []
    at = rng.expovariate(rate)
    while at < seconds:
        number = len(planned)
        body = templates[number % len(templates)].body(seed * 10**6 + number).decode()
        planned.append(Planned(number, "ids", "chat", round(at, 6), body))
        at += rng.expovariate(rate)
    return planned


def _measured(
    name: str, url: str, planned: Sequence[Planned], directory: Path
) -> tuple[float, float, float]:
    """p50 and p99 of those that were answered, µs, and the share of those that were not. Raises
    BenchError if none was."""
    outcomes, _ = send_planned(url, planned, directory)
    taken = [outcome.ttft_us for outcome in outcomes if outcome.ttft_us is not None]
    if not taken:
        raise BenchError(f"{name}: all of {len(planned)} failed: {outcomes[0].error}")
    p50, p99 = np.percentile(taken, (50, 99))
    return round(float(p50), 1), round(float(p99), 1), round(1 - len(taken) / len(outcomes), 4)
