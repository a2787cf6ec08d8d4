"""What a router adds to the time to the first token: open loop, the same rate for all, far from
saturation; with the same load on an engine itself beside it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from inferway_bench import conversations
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import send_at
from inferway_bench.placed import Placed
from inferway_bench.progress import OnStep
from inferway_bench.proxy.pacing import set_pace
from inferway_bench.proxy.plan import Plan
from inferway_bench.proxy.results import DIRECT, Latency

# Of a core, that the sending may take: it shares the machine with who is measured.
_CLIENT_SHARE = 0.4
_PROBE_RATE, _PROBE_SECONDS, _PROBE_SEED = 300.0, 3.0, 1_000


class Latencies(NamedTuple):
    """`rate`: requests a second, the same for all. `dropped`: routers of which none is known,
    since they answered nothing in some repeat, and what they said."""

    rate: float
    latencies: list[Latency]
    dropped: dict[str, str]


NONE = Latencies(0.0, [], {})


def measure_latencies(
    ready: Sequence[Placed], model: str, rate: float, plan: Plan, on_step: OnStep
) -> Latencies:
    """Streams of one token, so that what is measured ends with it. At `rate`, or at what the
    client can send with a part of a core if that is less."""
    for one in ready:
        set_pace(one, 1, 0)
    places = [(DIRECT, ready[0].place.engines[0].url)]
    places += [(one.router.label, one.place.url) for one in ready]
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _ in places}
    dropped: dict[str, str] = {}
    rate = min(rate, _client_rate(places[0][1], model))
    for repeat in range(plan.repeats):
        planned = poisson(model, rate, plan.latency_seconds, repeat)
        # who comes first changes, so that what was before nobody's is everybody's
        for name, url in [*places[repeat % len(places) :], *places[: repeat % len(places)]]:
            if name in dropped:
                continue
            on_step(f"latency at {rate:,.0f}/s: {name}, {repeat + 1} of {plan.repeats}")
            measured = _measured(url, planned)
            if isinstance(measured, str):
                dropped[name] = f"repeat {repeat + 1}, all of {len(planned)}: {measured}"
            else:
                found[name].append(measured)
    latencies = [
        Latency(name, *([each[i] for each in values] for i in range(3)))
        for name, values in found.items()
        if name not in dropped
    ]
    return Latencies(rate, latencies, dropped)


def _client_rate(url: str, model: str) -> float:
    """At which sending takes `_CLIENT_SHARE` of a core, by what it takes to send a few."""
    planned = poisson(model, _PROBE_RATE, _PROBE_SECONDS, _PROBE_SEED)
    _, share = send_at(_target(url), planned)
    return _CLIENT_SHARE * len(planned) / (share * _PROBE_SECONDS)


def poisson(
    model: str, rate: float, seconds: float, seed: int
) -> list[tuple[float, Mapping[str, Any]]]:
    """Requests that come as they like, `rate` a second; the same for all routers of a repeat."""
    rng, templates = random.Random(seed), conversations.short_chat(model, stream=True)
    planned: list[tuple[float, Mapping[str, Any]]] = []
    at = rng.expovariate(rate)
    while at < seconds:
        number = len(planned)
        body = templates[number % len(templates)].body(seed * 10**6 + number)
        planned.append((round(at, 6), msgspec.json.decode(body)))
        at += rng.expovariate(rate)
    return planned


def _target(url: str) -> Target:
    return Target(url, {"authorization": "Bearer dummy"}, timeout=60.0)


def _measured(
    url: str, planned: Sequence[tuple[float, Mapping[str, Any]]]
) -> tuple[float, float, float] | str:
    """p50 and p99 of those that were answered, µs, and the share of those that were not; if none
    was, why the first was not."""
    samples, _ = send_at(_target(url), planned)
    taken = [s.ttft_sent * 1e6 for s in samples if s.ok and s.ttft_sent is not None]
    if not taken:
        return str(samples[0].error)
    p50, p99 = np.percentile(taken, (50, 99))
    return round(float(p50), 1), round(float(p99), 1), round(1 - len(taken) / len(samples), 4)
