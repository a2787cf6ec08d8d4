"""`inferway bench dataplane`: what it costs to stand between clients and engines, beside other
routers.

Every router gets two trivial engines of its own. All of them are started first and then loaded in
turns; routers that do not look at prompts also carry streams, are timed far from saturation (open
loop, the same arrivals for all, with the same load on an engine itself beside them), and are
started anew for their memory.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import random
import resource
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np
import uvloop

from inferway_bench import conversations
from inferway_bench.cpu import resident_bytes
from inferway_bench.dataplane.testbed import (
    CHATS,
    Load,
    events_written,
    in_turns,
    publish_events,
    set_pace,
    started_routers,
)
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import Pacing, drive
from inferway_bench.loading.generated import Session, Turn
from inferway_bench.plotting import Chart, Plot
from inferway_bench.processes import BenchError, OnStep, in_turn
from inferway_bench.routers import (
    NOT_MEASURED,
    Counters,
    OnlyFlag,
    PeersFlag,
    Router,
    RunningRouter,
    added,
    all_routers,
    chosen,
    versions,
)
from inferway_bench.rows import Column, Findings, Key, Row, Run, Table, Value
from inferway_bench.spread import ratio_of_medians
from inferway_sim.prepare import prepare_smollm2

PLAIN, SCORING = "inferway serve --no-scoring", "inferway serve"
VLLM, SMG = "vllm-router round_robin", "smg round_robin"
_LIGHT = (PLAIN, VLLM, SMG)  # those that do not look at prompts

SHORT, LONG, STREAM = "0.7 kB chat", "8k-token chat", "stream of 500 chunks"
_STEP_SECONDS = 0.002  # between a stream's tokens: 10,000 chunks a second, far from saturation
_STREAMS, _TOKENS = 20, 500  # side by side, and of each
_WRITTEN = "events written"  # by the engines of a router


class DataplanePlan(msgspec.Struct, frozen=True):
    """Seconds are of load, for each router and repeat."""

    repeats: Annotated[int, flag("Load each router this number of times, in turns.", ge=1)] = 9
    seconds: Annotated[int, flag("Load each router for this time in each repeat.", ge=1)] = 4
    connections: Annotated[
        int, flag("Send requests over this number of connections at a time.", ge=1)
    ] = 8
    only: OnlyFlag = ()
    peers: PeersFlag = True
    latency_seconds: int = 5
    held_streams: int = 1000
    memory_repeats: int = 3


_QUICK = {"repeats": 2, "seconds": 2, "latency_seconds": 2, "memory_repeats": 1}


def measure(plan: DataplanePlan, on_step: OnStep) -> Findings:
    """Measure the routers that the plan wants. Raises BenchError when something cannot be started,
    fails a request, or does not match what it should match."""
    peers = [VLLM, "vllm-router cache_aware", "vllm-router kv_aware", SMG, "smg cache_aware"]
    peers += ["ai-dynamo round-robin", "ai-dynamo kv"]
    routers = all_routers(peers, plan.peers, on_step)
    return measure_routers(chosen(routers, plan.only), plan, on_step)


class _Case(NamedTuple):
    """One kind of load. `tokens` are those of each stream; 0: its answers are no streams."""

    name: str
    what: str
    load: Load
    tokens: int = 0


def _cases(model: str, connections: int) -> tuple[_Case, _Case, _Case]:
    """A short chat, a long one, and the short one streamed."""
    short, long = conversations.short_chat(model), conversations.chat_of_8k_tokens(model)
    stream = conversations.short_chat(model, stream=True)
    of_short = (
        f"{len(short)} chats of two messages, {len(short[0].body(0))} bytes and more, each request "
        "with a new last turn"
    )
    of_long = (
        f"4 conversations of about 8,000 tokens and 30 turns, {len(long[0].body(0)):,} bytes, "
        f"{len(long)} different last turns, each request with a new one"
    )
    of_stream = (
        f"the short chats, streamed: {_TOKENS} tokens, one every {_STEP_SECONDS * 1e3:g} ms, "
        f"{_STREAMS} streams side by side; the CPU time is that of a chunk"
    )
    return (
        _Case(SHORT, of_short, Load(short, connections)),
        _Case(LONG, of_long, Load(long, connections)),
        _Case(STREAM, of_stream, Load(stream, _STREAMS), _TOKENS),
    )


def measure_routers(routers: Sequence[Router], plan: DataplanePlan, on_step: OnStep) -> Findings:
    """Measure `routers`: see `measure`."""
    model = str(prepare_smollm2())
    # all processes started from here may open the sockets of a thousand streams, two for each
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    short, long, stream = loads = _cases(model, plan.connections)
    numbers = iter(range(1, 10**9, 10**6))
    rows: list[Row] = []
    notes: dict[str, list[str]] = {}
    facts: dict[str, Key] = {"rate": 0.0}
    with started_routers(routers, model, on_step) as ready:
        publish_events(ready, model, on_step)
        light = [one for one in ready if one.label in _LIGHT]
        for case, taking in ((short, ready), (long, ready), (stream, light)):
            rows += _cpu_rows(case, taking, plan, numbers, on_step)
        notes["cpu"] = [f"{case.name}: {case.what}" for case in loads]
        notes["cpu"] += [
            f"{row.keys['router']}: {row.values['did']}" for row in rows if row.keys["load"] == LONG
        ]
        notes["cpu"] += NOT_MEASURED
        if light:
            carried = [r for r in rows if r.keys["load"] == SHORT and r.keys["router"] in _LIGHT]
            half = min(row.median("per_second") for row in carried) / 2
            rate, mine = latencies(light, model, half, plan.latency_seconds, plan.repeats, on_step)
            rows += mine
            notes["latency"] = [_why_so_many(rate, half)]
            facts["rate"] = round(rate, 1)
    forwarding = [router for router in routers if router.label in _LIGHT]
    rows += memory_rows(forwarding, model, plan.held_streams, plan.memory_repeats, on_step)
    about = (
        f"{plan.repeats} repeats of {plan.seconds} s, {plan.connections} connections, all routers "
        f"in one run, taking turns: {versions(routers)}. Load average after the run: "
        f"{os.getloadavg()[0]:.2f}."
    )
    return Findings(
        rows=rows, about=[about], facts=facts, notes=notes, seeds=list(range(plan.repeats))
    )


def _why_so_many(rate: float, half: float) -> str:
    carries = "half of what the slowest router carries"
    if rate >= half:
        return f"{rate:,.0f} requests a second are {carries}"
    return (
        f"{rate:,.0f} requests a second are the rate at which the client takes "
        f"{CLIENT_SHARE:.0%} of a core; {carries} is {half:,.0f}"
    )


def _cpu_rows(
    case: _Case,
    ready: Sequence[RunningRouter],
    plan: DataplanePlan,
    numbers: Iterator[int],
    on_step: OnStep,
) -> list[Row]:
    least = math.ceil(3 * case.tokens * _STEP_SECONDS)  # so that streams end within
    # Dynamo streams whatever is asked: then as many tokens as a whole answer has, at once
    pace = (case.tokens, _STEP_SECONDS) if case.tokens else (14, 0)
    for one in ready:
        set_pace(one.place.engines, *pace)

    def count(one: RunningRouter) -> Counters:
        written = {_WRITTEN: float(events_written(one.place.engines))}
        return one.router.counters(one.place) | written

    measured = in_turns(
        ready, case.load, case.name, max(plan.seconds, least), plan.repeats, numbers, count, on_step
    )
    rows = []
    for one, repeats in zip(ready, measured, strict=True):
        counts = [r.counted[_WRITTEN] if case.tokens else r.result.requests for r in repeats]
        pairs = list(zip(repeats, counts, strict=True))
        values: dict[str, Value] = {
            "cpu_us": [round(r.cpu_seconds / number * 1e6, 2) for r, number in pairs],
            "per_second": [float(round(n * 1e6 / r.result.microseconds)) for r, n in pairs],
            "p50_ms": [] if case.tokens else [r.result.p50_us / 1e3 for r in repeats],
            "mib": round(resident_bytes(one.pid) / 2**20, 1),
            "did": one.router.evidence(added(r.counted for r in repeats)),
        }
        keys: dict[str, Key] = {"load": case.name, "router": one.label}
        rows.append(Row("cpu", keys, values, one.router.is_ours))
    return rows


def losses(run: Run) -> list[str]:
    """Name the peers that take less CPU time than ours does with all it does."""
    found = []
    for load in (SHORT, LONG):
        ours = run.find("cpu", load=load, router=SCORING)
        for row in run.select("cpu", load=load):
            if ours is None or row.is_ours:
                continue
            times = ratio_of_medians(ours.repeats("cpu_us"), row.repeats("cpu_us"))
            if times.low > 1:
                found.append(
                    f"{load}: {row.keys['router']} takes {row.median('cpu_us'):,.0f} µs of CPU, "
                    f"`{SCORING}` {ours.median('cpu_us'):,.0f}: {times.shown('{:.1f}')} times as "
                    "much"
                )
    return found


_NUMBER = "{:,.0f}"
_TABLES = [
    Table(
        "cpu",
        "CPU time for a request, of streams for a chunk, median (lowest to highest of the repeats)",
        ["load", "router"],
        [
            Column("cpu_us", "CPU, µs", "{:,.1f}", "range"),
            Column("per_second", "carried a second", _NUMBER),
            Column("p50_ms", "p50, ms"),
            Column("mib", "MiB", _NUMBER),
        ],
    ),
    Table(
        "latency",
        "Latency: open loop, Poisson arrivals, {rate:,.0f} streams of one token a second through "
        "each router; time to first token in µs, medians of the repeats (95 %)",
        ["router"],
        [
            Column("p50_us", "p50", _NUMBER),
            Column("p99_us", "p99", _NUMBER),
            Column("added_p50_us", "added p50", _NUMBER, "interval"),
            Column("added_p99_us", "added p99", _NUMBER, "interval"),
            Column("failed", "failed", "{:.1%}"),
        ],
    ),
    Table(
        "memory",
        "Memory of the process tree in MiB, median (lowest to highest) of the starts",
        ["router"],
        [
            Column("at_start", "at start", _NUMBER, "range"),
            Column("growth", "growth to {held_streams:,} streams", _NUMBER, "range"),
        ],
    ),
]

DATAPLANE = Benchmark(
    "dataplane",
    "Measure what the data plane costs beside other routers: the CPU time of a request and of a "
    "streamed chunk, added latency and memory. It needs the program wrk.",
    DataplanePlan,
    measure,
    _TABLES,
    chart=Chart(
        "What the data plane costs, 95 %",
        [
            Plot("cpu", ["cpu_us"], "load", "router", y_label="CPU, µs", log_y=True),
            Plot(
                "latency", ["p50_us", "p99_us"], by="router", log_y=True,
                y_label="time to the first token, µs", x_label="{rate:,.0f} requests a second",
            ),
            Plot("memory", ["at_start", "growth"], by="router", y_label="memory, MiB"),
        ],
    ),
    quick=_QUICK,
    losses=losses,
    question="how much CPU time, latency and memory a router takes: Inferway and its peers",
    takes="20 minutes",
)  # fmt: skip
dataplane = DATAPLANE.command()


DIRECT = "no router"

# Of a core, that the sending may take: it shares the machine with who is measured.
CLIENT_SHARE = 0.4
_PROBE_RATE, _PROBE_SECONDS, _PROBE_SEED = 300.0, 3.0, 1_000
_PATIENCE = 60.0  # seconds that an answer gets
# What the official Python client sends besides the length.
_HEADERS = {"user-agent": "OpenAI/Python 2.8.1", "authorization": "Bearer dummy"}


class _Timed(NamedTuple):
    """One repeat."""

    requests: int
    ttft_us: list[float]  # from the first byte sent, of those that were answered
    cpu_share: float  # of a core, that the sending took


def latencies(
    ready: Sequence[RunningRouter],
    model: str,
    rate: float,
    seconds: float,
    repeats: int,
    on_step: OnStep,
) -> tuple[float, list[Row]]:
    """Send streams of one token, so that what is measured ends with it: at `rate`, or at what the
    client can send with a part of a core if that is less. Return the rate, and a row for each
    router. Raises BenchError when one answers nothing."""
    for one in ready:
        set_pace(one.place.engines, 1, 0)
    direct = ready[0].place.engines[0].url
    urls = {DIRECT: direct} | {one.router.label: one.place.url for one in ready}
    probe = _send(direct, model, _PROBE_RATE, _PROBE_SECONDS, _PROBE_SEED)
    rate = min(rate, CLIENT_SHARE * probe.requests / (probe.cpu_share * _PROBE_SECONDS))
    sent: dict[str, list[_Timed]] = {label: [] for label in urls}
    for repeat in range(repeats):
        for label in in_turn(list(urls), repeat):
            on_step(f"latency at {rate:,.0f}/s: {label}, {repeat + 1} of {repeats}")
            sent[label].append(_send(urls[label], model, rate, seconds, repeat))
    ours = {one.router.label for one in ready if one.router.is_ours}
    return rate, _rows(sent, ours)


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
    """Return Poisson arrivals of `rate` requests a second; the same for all routers of a repeat."""
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
    ttft_us = [s.ttft_sent * 1e6 for s in good if s.ttft_sent is not None]
    if not ttft_us:
        said = next((f"{s.error}: {s.detail}" for s in driven.samples if not s.ok), "no usage")
        raise BenchError(f"{url}: none of {len(sessions)} streams was answered: {said}")
    return _Timed(len(sessions), ttft_us, driven.cpu_share)


_HELD_STEP_SECONDS = 2.0  # between the tokens of streams that are held
_HELD_TOKENS = 100
_AT_ONCE = 50  # streams that are opened side by side


def memory_rows(
    routers: Sequence[Router], model: str, streams: int, repeats: int, on_step: OnStep
) -> list[Row]:
    """Start each router `repeats` times, and open `streams` after one request. Raises BenchError
    when a stream does not begin."""
    starts: dict[Router, list[float]] = {router: [] for router in routers}
    growths: dict[Router, list[float]] = {router: [] for router in routers}
    for repeat in range(repeats):
        for router in routers:
            on_step(f"memory: {router.label}, {repeat + 1} of {repeats}")
            with started_routers([router], model, lambda _: None) as [one]:
                before = resident_bytes(one.pid)
                set_pace(one.place.engines, _HELD_TOKENS, _HELD_STEP_SECONDS)
                held = uvloop.run(_with_streams(one.place.url, one.pid, model, streams))
            starts[router].append(round(before / 2**20, 1))
            growths[router].append(round((held - before) / 2**20, 1))
    return [
        Row(
            "memory",
            {"router": router.label},
            {"at_start": starts[router], "growth": growths[router]},
            is_ours=router.is_ours,
        )
        for router in routers
    ]


async def _with_streams(url: str, pid: int, model: str, number: int) -> int:
    """Return the resident bytes while `number` streams are open, each with its first event at its
    client."""
    bodies = conversations.short_chat(model, stream=True)
    writers: list[asyncio.StreamWriter] = []
    try:
        async with asyncio.timeout(_PATIENCE):
            for first in range(0, number, _AT_ONCE):
                some = range(first, min(first + _AT_ONCE, number))
                texts = [bodies[i % len(bodies)].body(i) for i in some]
                writers += await asyncio.gather(*(_begin(url, text) for text in texts))
        return resident_bytes(pid)
    except TimeoutError as e:
        raise BenchError(f"{url}: {number} streams did not begin within {_PATIENCE:g} s") from e
    finally:
        for writer in writers:
            writer.transport.abort()


async def _begin(url: str, body: bytes) -> asyncio.StreamWriter:
    """Return a stream whose first event has come."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = (
        f"POST {CHATS} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    heard = b""
    while b"data: " not in heard:
        more = await reader.read(65536)
        if not more:
            raise BenchError(f"{url}: a stream ended before it began: {heard[:300]!r}")
        heard += more
    return writer
