"""`inferway bench index`: the same blocks in our index and in Dynamo's RadixTree, and how long
everybody else waits while our index grows. Each task is a process of its own (`worker`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Annotated, Any

import msgspec
from msgspec import field

from inferway.doctor.machine import cache_dir
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.index.worker import OURS, PEER, PEER_ON_ONE, SHAPES
from inferway_bench.plotting import Chart, Plot
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Goal, Key, Row, Run, Value, goal
from inferway_bench.spread import median_interval, ratio_of_medians, three_digits
from inferway_bench.venvs import install_venv
from inferway_bench.workers import in_turn, result_of

PEER_PACKAGE = "ai-dynamo-runtime==1.6.1"
GROWING = "while it grows"

Keys = dict[str, Key]
Found = Mapping[str, Any]  # system -> what each round has found, of one task


class IndexPlan(msgspec.Struct, frozen=True):
    """What a run does. The workers get it as JSON."""

    peer: Annotated[
        bool, flag("Measure Inferway's index alone, and do not install ai-dynamo-runtime.")
    ] = True
    seed: int = 1
    rounds: int = 5  # in which both systems are measured, taking turns
    block_size: int = 32
    prompts: dict[int, int] = field(default_factory=lambda: {512: 200, 8192: 20})  # of each length
    filler_blocks: int = 1_000_000  # of other prompts beside them
    match_repeats: int = 15
    events: dict[int, int] = field(default_factory=lambda: {16: 4_000, 1: 20_000})  # by blocks
    event_repeats: int = 3
    growth_blocks: int = 6_000_000
    blocks_per_second: int = 100_000
    quiet_seconds: float = 10.0  # before an index grows, to compare with
    memory_blocks: int = 6_000_000
    peer_blocks: int = 1_000_000


_QUICK = {
    "rounds": 2, "prompts": {512: 50, 8192: 5}, "filler_blocks": 50_000, "match_repeats": 7,
    "events": {16: 500, 1: 2_000}, "event_repeats": 2, "growth_blocks": 500_000,
    "quiet_seconds": 2.0, "memory_blocks": 500_000, "peer_blocks": 200_000,
}  # fmt: skip


def measure(plan: IndexPlan, on_step: OnStep) -> Findings:
    """Measure all tasks. Raises BenchError, with the cure, when the peer cannot be had or an answer
    is wrong."""
    pythons: dict[str, object] = {OURS: sys.executable}
    if plan.peer:
        cure = "let this machine reach PyPI, or leave the peer out with --no-peer"
        venv = install_venv(cache_dir() / "dynamo", [PEER_PACKAGE], on_step, cure)
        pythons |= dict.fromkeys((PEER, PEER_ON_ONE), venv.executable("python"))
    words = msgspec.json.encode(plan).decode()

    def found(task: str, system: str) -> Any:
        on_step(f"{task}: {system}")
        return result_of(pythons[system], "inferway_bench.index.worker", words, task, system)

    matches, events = (_in_turns(plan, task, list(pythons), found) for task in ("match", "events"))
    rows = [*match_rows(plan, matches), *event_rows(plan, events)]
    rows += [
        Row("growth", {"system": system}, found("memory", system), is_ours=system == OURS)
        for system in pythons
        if system != PEER_ON_ONE
    ]
    growth = found("stalls", OURS)
    rows += [Row("stalls", {"when": when}, ms) for when, ms in growth["phases"].items()]
    return Findings(
        rows=rows,
        about=[
            f"{plan.rounds} rounds, in which both systems take turns; blocks of {plan.block_size} "
            f"tokens. The peer: {PEER_PACKAGE if plan.peer else 'left out'}."
        ],
        notes={
            "stalls": [
                f"to {growth['blocks']:,} blocks at {growth['blocks'] / growth['seconds']:,.0f} "
                "blocks/s, with a decision every 5 ms (16 k tokens, eight engines, no rendering); "
                f"the loop was held for at most {growth['slice_ms']:.1f} ms of CPU time, and a "
                f"single event for at most {growth['event_ms']:.1f} ms"
            ]
        },
    )


def _in_turns(
    plan: IndexPlan, task: str, systems: list[str], found: Callable[[str, str], Any]
) -> Found:
    each: dict[str, list[Any]] = {system: [] for system in systems}
    for number in range(plan.rounds):
        for system in in_turn(systems, number):
            each[system].append(found(task, system))
    return each


# what the tasks have found, in rows


def match_rows(plan: IndexPlan, found: Found) -> Iterator[Row]:
    """Yield a row of each length, shape and system. Raises BenchError if an answer of ours is
    wrong."""
    for length, shape, (system, each) in product(plan.prompts, SHAPES, found.items()):
        case = f"{length} {shape}"
        right = all(one[case]["right"] for one in each)
        if system == OURS and not right:
            raise BenchError(f"match of {case}: our answers are not those of a walk")
        us, ours = ([one[case]["us"] for one in some] for some in (each, found[OURS]))
        values: dict[str, Value] = {"µs": us}
        if system != OURS:
            values["ratio"] = ratio_of_medians(us, ours)
            values["answers"] = None if right else "differ"
        keys: Keys = {"blocks": length, "held": shape, "system": system}
        yield Row("match", keys, values, is_ours=system == OURS)


def event_rows(plan: IndexPlan, found: Found) -> Iterator[Row]:
    """Yield a row of each size of events and system. The compared time of the peer is that of
    hashing and applying, without the JSON that its Python API takes."""
    for blocks, num_events in plan.events.items():
        us_an_event = 1e6 / num_events
        ours: list[float] = []
        for system, each in found.items():
            runs = [run for one in each for run in one[str(blocks)]]
            values: dict[str, Value] = {
                step: [run[step] * us_an_event for run in runs] for step in runs[0] if step != "all"
            }
            us = [sum(s for step, s in run.items() if step != "JSON") * us_an_event for run in runs]
            ours = ours or us
            values["µs"] = us
            values["blocks/s"] = median_interval([blocks / one * 1e6 for one in us])
            if system != OURS:
                values["ratio"] = ratio_of_medians(us, ours)
            keys: Keys = {"blocks of an event": blocks, "system": system}
            yield Row("events", keys, values, is_ours=system == OURS)


# what is required, and what is shown


def goals(run: Run) -> Iterator[Goal]:
    """Yield what is required of the index, judged."""
    short, *_, long = sorted(map(int, run.plan["prompts"]))
    match, match_long = (
        _found(run, "match", held="detached", blocks=length, system=OURS)
        for length in (short, long)
    )
    big, small = (_found(run, "events", **{"blocks of an event": n}) for n in (16, 1))
    quiet, growing = (_found(run, "stalls", when=when) for when in ("before", GROWING))
    peers = run.find("match", blocks=short, held="detached", system=PEER)
    peers_event = run.find("events", system=PEER, **{"blocks of an event": 16})
    if peers is not None and peers_event is not None:
        what = f"match of {short:,} blocks, 8 engines, 1 % detached, the peer's time / ours"
        yield goal(what, peers.interval("ratio"), least=10, form="{:.1f}", unit=" ×")
        what = "16-block events, the peer's time / ours"
        yield goal(what, peers_event.interval("ratio"), least=2, unit=" ×")
    what = f"match of {long:,} blocks, time / that of {short:,} blocks"
    yield goal(what, match_long.median("µs") / match.median("µs"), most=3, unit=" ×")
    for what, row, least in (
        ("16-block events, blocks/s", big, 300_000),
        ("one-block events, events/s", small, 60_000),
    ):
        yield goal(what, row.interval("blocks/s"), least=least, form="{:,.0f}")
    yield goal("bytes of a block at the peak", _found(run, "growth").median("peak"), most=250)
    yield goal("longest stall while the index grows", growing.median("late"), most=5, unit=" ms")
    decided = growing.median("decision p99") - quiet.median("decision p99")
    yield goal("time that growing adds to a decision's p99", decided, most=2, unit=" ms")


def _found(run: Run, table: str, **keys: Key) -> Row:
    row = run.find(table, **keys)
    assert row is not None, (table, keys)
    return row


def losses(run: Run) -> list[str]:
    """Return where the peer is ahead."""
    found = []
    growth = run.find("growth", system=PEER)
    if growth is not None:
        ours = _found(run, "growth").median("peak")
        found.append(
            f"memory: a block takes {ours:.0f} bytes, in Dynamo's RadixTree "
            f"{growth.median('peak'):.0f}"
        )
    for row in run.select("events", system=PEER_ON_ONE):
        blocks = row.keys["blocks of an event"]
        us = _found(run, "events", **{"blocks of an event": blocks}).median("µs")
        if row.median("µs") < us:
            found.append(
                f"{blocks}-block events: one takes {us:.1f} µs, in Dynamo's RadixTree on one core "
                f"{row.median('µs'):.1f}"
            )
    return found


def _us(head: str = "µs") -> Column:
    return Column("µs", head, three_digits, "range", "lower", "µs")


_RATIO = Column("ratio", "times ours", "{:.1f}", shown="value")
_MS = "{:.2f}"
TABLES = [
    Table(
        "match",
        "Time of a match in µs, in an index with {filler_blocks:,} other blocks: mean over all "
        "prompts of each prompt's median (lowest to highest of the rounds)",
        ["blocks", "held"], [_us(), _RATIO, Column("answers")], across="system",
        notes=[
            *(f"*{shape}*: {what}" for shape, what in SHAPES.items()),
            "Inferway's answers equal those of a plain walk over every prompt",
        ],
    ),
    Table(
        "events",
        "Time of an event in µs, medians (lowest to highest): Inferway from the engine's payload "
        "to the index, the peer from a list of tokens",
        ["blocks of an event", "system"],
        [
            *(Column(step) for step in ("hash", "JSON", "apply")), _us("all but JSON"),
            Column("blocks/s", form="{:,.0f}", shown="value", better="higher"), _RATIO,
        ],
    ),
    Table(
        "growth",
        "Memory of one engine's blocks while its index grows to {memory_blocks:,}, in bytes for "
        "each block",
        ["system"],
        [
            Column("peak", form="{:.0f}", better="lower", unit="bytes"),
            Column("at the end", form="{:.0f}"),
        ],
    ),
    Table(
        "stalls", "Stalls in ms, while the index grows: one event loop (one run)", ["when"],
        [
            Column("decision p50", form=_MS, unit="ms"),
            Column("decision p99", "p99", _MS, better="lower", unit="ms"),
            Column("decision", "longest", _MS, unit="ms"),
            Column("late p99", "other tasks late by, p99", _MS, better="lower", unit="ms"),
            Column("late", "longest", _MS, unit="ms"),
        ],
        in_details=True,
    ),
]  # fmt: skip
INDEX = Benchmark(
    "index",
    "Measure the index beside Dynamo's RadixTree: matching, events, memory, and how long the event "
    "loop is held.",
    IndexPlan, measure, TABLES,
    Chart(
        "A match in a full index: median, 95 %",
        [Plot(
            "match", ["µs"], "blocks", by="held", y_label="match, µs", log_x=True, log_y=True,
            where=lambda row: row.is_ours,
        )],
    ),
    quick=_QUICK, goals=lambda run: list(goals(run)), losses=losses,
    question="how fast the index matches prompts and applies events, how much memory it takes and "
    "how long it stalls, compared with Dynamo's RadixTree",
    takes="10 minutes",
)  # fmt: skip
index = INDEX.command()
