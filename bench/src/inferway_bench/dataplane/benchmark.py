"""`inferway bench dataplane`: what it costs to stand between clients and engines, beside other
routers.

Every router gets two trivial engines of its own. All of them are started first and then loaded in
turns; routers that do not look at prompts also carry streams, are timed far from saturation, and
are started anew for their memory.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec

from inferway.prompts.files.prepare import prepare_smollm2
from inferway_bench import conversations
from inferway_bench.cpu import resident_bytes
from inferway_bench.dataplane.latency import CLIENT_SHARE, latencies
from inferway_bench.dataplane.memory import memory_rows
from inferway_bench.dataplane.testbed import (
    events_written,
    in_turns,
    publish_events,
    set_pace,
    started_routers,
)
from inferway_bench.dataplane.wrk import Load
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.plotting import Chart, Plot
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.routers import (
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
from inferway_bench.rows import Findings, Key, Row, Run, Value
from inferway_bench.spread import ratio_of_medians

PLAIN, SCORING = "inferway serve --no-scoring", "inferway serve"
VLLM, SGLANG = "vllm-router round_robin", "sglang-router round_robin"
_LIGHT = (PLAIN, VLLM, SGLANG)  # those that do not look at prompts

SHORT, LONG, STREAM = "0.7 kB chat", "8k-token chat", "stream of 500 chunks"
_STEP_SECONDS = 0.002  # between a stream's tokens: 10,000 chunks a second, far from saturation
_STREAMS, _TOKENS = 20, 500  # side by side, and of each
_WRITTEN = "events written"  # by the engines of a router


class RoutersPlan(msgspec.Struct, frozen=True):
    """Seconds are of load, for each router and repeat."""

    repeats: Annotated[int, flag("Load each router this number of times, in turns.", ge=1)] = 9
    seconds: Annotated[int, flag("Load each router for this time in each repeat.", ge=1)] = 4
    connections: Annotated[
        int, flag("Send requests over this number of connections at a time.", ge=1)
    ] = 8
    only: OnlyFlag = ()
    peers: PeersFlag = True


class DataplanePlan(RoutersPlan, frozen=True):
    """The same, and what is measured beside the CPU time."""

    latency_seconds: int = 5
    held_streams: int = 1000
    memory_repeats: int = 3


_QUICK = {"repeats": 2, "seconds": 2, "latency_seconds": 2, "memory_repeats": 1}


def measure(plan: DataplanePlan, on_step: OnStep) -> Findings:
    """Measure the routers that the plan wants. Raises BenchError when something cannot be started,
    fails a request, or does not match what it should match."""
    policies = ("round_robin", "cache_aware", "kv_aware")
    routers = all_routers(policies, policies[:2], plan.peers, on_step)
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
        _Case(STREAM, of_stream, Load(stream, _STREAMS), tokens=_TOKENS),
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
        notes["cpu"] = [*(f"{case.name}: {case.what}" for case in loads), *_evidence(rows)]
        if light:
            carried = [r for r in rows if r.keys["load"] == SHORT and r.keys["router"] in _LIGHT]
            half = min(row.median("per_second") for row in carried) / 2
            timed = latencies(light, model, half, plan.latency_seconds, plan.repeats, on_step)
            rows += timed.rows
            notes["latency"] = [_why_so_many(timed.rate, half), *timed.notes]
            facts["rate"] = round(timed.rate, 1)
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
    for one in ready:
        set_pace(one.place.engines, _TOKENS, _STEP_SECONDS)

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


def _evidence(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what each router says that it did, once where it says the same of several loads."""
    said: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        said.setdefault((str(row.keys["router"]), str(row.values["did"])), []).append(
            str(row.keys["load"])
        )
    for (router, did), loads in said.items():
        is_alone = sum(name == router for name, _ in said) == 1
        yield f"{router}{'' if is_alone else ', ' + ' and '.join(loads)}: {did}"


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
            Column("cpu_us", "CPU, µs", "{:,.1f}", "range", "lower", "µs"),
            Column("per_second", "carried a second", _NUMBER, better="higher"),
            Column("p50_ms", "p50, ms"),
            Column("mib", "MiB", _NUMBER, better="lower", unit="MiB"),
        ],
    ),
    Table(
        "latency",
        "Latency: open loop, Poisson arrivals, {rate:,.0f} streams of one token a second through "
        "each router; time to first token in µs, medians of the repeats (95 %)",
        ["router"],
        [
            Column("p50_us", "p50", _NUMBER, better="lower", unit="µs"),
            Column("p99_us", "p99", _NUMBER, better="lower", unit="µs"),
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
            Column("at_start", "at start", _NUMBER, "range", "lower", "MiB"),
            Column(
                "growth", "growth to {held_streams:,} streams", _NUMBER, "range", "lower", "MiB"
            ),
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
