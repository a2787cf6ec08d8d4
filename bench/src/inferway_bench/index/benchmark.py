"""`inferway bench index`: the same blocks in our index and in Dynamo's RadixTree. Each task is a
process of its own (`worker`)."""

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
from inferway_bench.processes import BenchError, OnStep, in_turn, install_venv, result_of
from inferway_bench.rows import Column, Findings, Key, Row, Run, Table, Value
from inferway_bench.spread import median_interval, ratio_of_medians, three_digits

PEER_PACKAGE = "ai-dynamo-runtime==1.6.1"

Keys = dict[str, Key]
Found = Mapping[str, Any]  # system -> what each round has found, of one task


class IndexPlan(msgspec.Struct, frozen=True):
    """The plan of a run. The workers get it as JSON."""

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
    memory_blocks: int = 6_000_000
    peer_blocks: int = 1_000_000


_QUICK = {
    "rounds": 2, "prompts": {512: 50, 8192: 5}, "filler_blocks": 50_000, "match_repeats": 7,
    "events": {16: 500, 1: 2_000}, "event_repeats": 2,
    "memory_blocks": 500_000, "peer_blocks": 200_000,
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
        Row("memory", {"system": system}, found("memory", system), is_ours=system == OURS)
        for system in pythons
        if system != PEER_ON_ONE
    ]
    about = (
        f"{plan.rounds} rounds, in which both systems take turns; blocks of {plan.block_size} "
        f"tokens. The peer: {PEER_PACKAGE if plan.peer else 'left out'}."
    )
    return Findings(rows=rows, about=[about])


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


# what is shown


def losses(run: Run) -> list[str]:
    """Return where the peer is ahead."""
    found = []
    ours, peer = (run.find("memory", system=system) for system in (OURS, PEER))
    if ours is not None and peer is not None and peer.median("bytes") < ours.median("bytes"):
        found.append(
            f"memory: a block takes {ours.median('bytes'):.0f} bytes, in Dynamo's RadixTree "
            f"{peer.median('bytes'):.0f}"
        )
    for row in run.select("events", system=PEER_ON_ONE):
        mine = run.find("events", **{**row.keys, "system": OURS})
        if mine is not None and row.median("µs") < mine.median("µs"):
            found.append(
                f"{row.keys['blocks of an event']}-block events: one takes {mine.median('µs'):.1f} "
                f"µs, in Dynamo's RadixTree on one core {row.median('µs'):.1f}"
            )
    return found


def _us(head: str = "µs") -> Column:
    return Column("µs", head, three_digits, "range")


_RATIO = Column("ratio", "times ours", "{:.1f}", shown="value")
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
            Column("blocks/s", form="{:,.0f}", shown="value"), _RATIO,
        ],
    ),
    Table(
        "memory", "Memory of one engine's blocks, {memory_blocks:,} of them, in bytes for each",
        ["system"], [Column("bytes", form="{:.0f}")],
    ),
]  # fmt: skip
INDEX = Benchmark(
    "index",
    "Measure the index beside Dynamo's RadixTree: matching, events and memory.",
    IndexPlan, measure, TABLES,
    quick=_QUICK, losses=losses,
    question="how fast the index matches prompts and applies events, and how much memory it takes, "
    "compared with Dynamo's RadixTree",
    takes="8 minutes",
)  # fmt: skip
index = INDEX.command()
