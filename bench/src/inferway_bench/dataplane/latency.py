"""What a router adds to the time to the first token: open loop, the same arrivals for all, far from
saturation; with the same load on an engine itself beside it."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import uvloop

from inferway_bench import conversations
from inferway_bench.dataplane.testbed import set_pace
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import Pacing, drive
from inferway_bench.loading.workload import Session, Turn
from inferway_bench.progress import OnStep
from inferway_bench.routers import RunningRouter
from inferway_bench.rows import Row
from inferway_bench.workers import in_turn

DIRECT = "no router"

# Of a core, that the sending may take: it shares the machine with who is measured.
CLIENT_SHARE = 0.4
_PROBE_RATE, _PROBE_SECONDS, _PROBE_SEED = 300.0, 3.0, 1_000
_PATIENCE = 60.0  # seconds that an answer gets
# What the official Python client sends besides the length.
_HEADERS = {"user-agent": "OpenAI/Python 2.8.1", "authorization": "Bearer dummy"}


class _Timed(NamedTuple):
    """One repeat. `error` says why the first request that failed did."""

    requests: int
    ttft_us: list[float]  # from the first byte sent, of those that were answered
    cpu_share: float  # of a core, that the sending took
    error: str | None


class Latencies(NamedTuple):
    """`rate`: requests a second, the same for all. `notes` name the routers that answered nothing
    in some repeat, and so have no row, and say why."""

    rate: float
    rows: list[Row]
    notes: list[str]


def latencies(
    ready: Sequence[RunningRouter],
    model: str,
    rate: float,
    seconds: float,
    repeats: int,
    on_step: OnStep,
) -> Latencies:
    """Streams of one token, so that what is measured ends with it: at `rate`, or at what the client
    can send with a part of a core if that is less."""
    for one in ready:
        set_pace(one.place.engines, 1, 0)
    direct = ready[0].place.engines[0].url
    urls = {DIRECT: direct} | {one.router.label: one.place.url for one in ready}
    probe = _send(direct, model, _PROBE_RATE, _PROBE_SECONDS, _PROBE_SEED)
    rate = min(rate, CLIENT_SHARE * probe.requests / (probe.cpu_share * _PROBE_SECONDS))
    sent: dict[str, list[_Timed]] = {label: [] for label in urls}
    failed: dict[str, str] = {}
    for repeat in range(repeats):
        for label in in_turn(list(urls), repeat):
            if label in failed:
                continue
            on_step(f"latency at {rate:,.0f}/s: {label}, {repeat + 1} of {repeats}")
            found = _send(urls[label], model, rate, seconds, repeat)
            sent[label].append(found)
            if not found.ttft_us:
                failed[label] = f"repeat {repeat + 1}, all of {found.requests}: {found.error}"
    ours = {one.router.label for one in ready if one.router.is_ours}
    rows = _rows({label: found for label, found in sent.items() if label not in failed}, ours)
    return Latencies(
        rate, rows, [f"{label} answered nothing in {said}" for label, said in failed.items()]
    )


def _rows(sent: dict[str, list[_Timed]], ours: set[str]) -> list[Row]:
    """Return a row for each router. What it adds is the difference to the same percentile
    without one, repeat by repeat."""
    percentiles = {
        label: [np.percentile(one.ttft_us, (50, 99)) for one in found]
        for label, found in sent.items()
    }
    direct = percentiles.get(DIRECT)
    rows = []
    for label, found in sent.items():
        values: dict[str, list[float]] = {}
        for i, name in enumerate(("p50_us", "p99_us")):
            mine = [float(each[i]) for each in percentiles[label]]
            values[name] = [round(us, 1) for us in mine]
            if direct is not None and label != DIRECT:
                pairs = zip(mine, direct, strict=True)
                values[f"added_{name}"] = [round(us - float(other[i]), 1) for us, other in pairs]
        values["failed"] = [round(1 - len(one.ttft_us) / one.requests, 4) for one in found]
        rows.append(Row("latency", {"router": label}, {**values}, is_ours=label in ours))
    return rows


def arrivals(model: str, rate: float, seconds: float, seed: int) -> list[Session]:
    """Requests that come as they like, `rate` a second; the same for all routers of a repeat."""
    rng, templates = random.Random(seed), conversations.short_chat(model, stream=True)
    found: list[Session] = []
    at = rng.expovariate(rate)
    while at < seconds:
        number = len(found)
        body = templates[number % len(templates)].body(seed * 10**6 + number)
        found.append(Session(number, [Turn(fields=msgspec.json.decode(body))], (at,)))
        at += rng.expovariate(rate)
    return found


def _send(url: str, model: str, rate: float, seconds: float, seed: int) -> _Timed:
    sessions = arrivals(model, rate, seconds, seed)
    target = Target(url, _HEADERS, timeout=_PATIENCE)
    gc.collect()
    gc.disable()  # a collection would be somebody's latency
    try:
        driven = uvloop.run(drive(target, sessions, Pacing(), model="", fields={}, reads_late=True))
    finally:
        gc.enable()
    good = [s for s in driven.samples if s.ok and s.completion_tokens is not None]
    bad = next((s for s in driven.samples if not s.ok), None)
    error = "streams without usage" if bad is None else f"{bad.error}: {bad.detail}"
    ttft_us = [s.ttft_sent * 1e6 for s in good if s.ttft_sent is not None]
    return _Timed(len(sessions), ttft_us, driven.cpu_share, error)
