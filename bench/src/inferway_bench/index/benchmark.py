"""`inferway bench index`: the same blocks in our index and in Dynamo's RadixTree, and what only a
gateway has: an index that grows beside decisions, is kept on disk, or is in Redis.

Each task is a process of its own (`beside`, `worker`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from inferway.prompts.files.prepare import cache_dir
from inferway_bench.harness import Benchmark
from inferway_bench.index.beside import OURS, PEER, PEER_ON_ONE
from inferway_bench.index.plan import QUICK, IndexPlan
from inferway_bench.index.workload import SHAPES
from inferway_bench.plotting import Chart, Plot
from inferway_bench.processes import BenchError, with_sources
from inferway_bench.progress import OnStep
from inferway_bench.report import Better, Column, Table
from inferway_bench.rows import Findings, Goal, Key, Row, Run, Value, goal
from inferway_bench.spread import median_interval, ratio_of_medians, three_digits
from inferway_bench.venvs import install_venv

PEER_PACKAGE = "ai-dynamo-runtime==1.6.1"
GROWS, LOADS = "the index grows", "snapshots are loaded"
GROWING, LOADING = "while it grows", "while they are loaded"
COMPACTING = "afterwards, while a journal is compacted twice"

Keys = dict[str, Key]
Found = Mapping[str, Any]  # system -> what each round has found, of one task


def measure(plan: IndexPlan, on_step: OnStep) -> Findings:
    """Measure all tasks. Raises BenchError, with the cure, when the peer cannot be had or an answer
    is wrong."""
    tasks = _Tasks(plan, on_step)
    found = {task: tasks.in_turns(task) for task in ("match", "events", "keys")}
    rows = [
        *match_rows(plan, found["match"]),
        *event_rows(plan, found["events"]),
        *_key_rows(plan, found["keys"]),
        *_memory_rows(tasks),
    ]
    growth = tasks.ours("growing")
    journal = tasks.with_folder("journal_cost")
    loading = tasks.with_folder("fill", "loading")
    redis = tasks.with_folder("redis")
    for loop, found_by_phase in ((GROWS, growth["phases"]), (LOADS, loading["phases"])):
        for when, ms in found_by_phase.items():
            rows.append(Row("stalls", {"loop": loop, "when": when}, ms))
    values = {**journal, "compaction": loading["compaction"]}
    rows.append(Row("journal", {"applying": "16 blocks"}, values))
    rows += [Row("redis", {"index": name}, us) for name, us in (redis or {}).items()]
    return Findings(
        rows=rows,
        about=[
            f"{plan.rounds} rounds, in which both systems take turns; blocks of {plan.block_size} "
            f"tokens. The peer: {PEER_PACKAGE if plan.peer else 'left out'}."
        ],
        notes={"stalls": stall_notes(growth, loading)},
    )


def stall_notes(growth: Mapping[str, Any], loading: Mapping[str, Any]) -> list[str]:
    """Return what is to be said of the event loops."""
    return [
        f"*{GROWS}*: to {growth['blocks']:,} blocks at {growth['blocks'] / growth['seconds']:,.0f} "
        "blocks/s, with a decision every 5 ms (16 k tokens, eight engines, no rendering); the loop "
        f"was held for at most {growth['slice_ms']:.1f} ms of CPU time, and a single event for at "
        f"most {growth['event_ms']:.1f} ms",
        f"*{LOADS}*: {loading['blocks']:,} blocks of eight engines, in {loading['seconds']:.1f} s; "
        f"afterwards events come at {loading['blocks per second']:,.0f} blocks/s",
    ]


class _Tasks:
    """Runs each task in a fresh process."""

    def __init__(self, plan: IndexPlan, on_step: OnStep) -> None:
        self._plan = plan
        self._on_step = on_step
        self._peer = ""
        if plan.peer:
            cure = "let this machine reach PyPI, or leave the peer out with --no-peer"
            venv = install_venv(cache_dir() / "dynamo", [PEER_PACKAGE], on_step, cure)
            self._peer = str(venv.executable("python"))

    def in_turns(self, task: str) -> Found:
        """Return what each round has found, by system; who is first changes."""
        systems = [OURS, PEER, PEER_ON_ONE] if self._peer else [OURS]
        found: dict[str, list[Any]] = {system: [] for system in systems}
        for number in range(self._plan.rounds):
            self._on_step(f"{task}, round {number + 1} of {self._plan.rounds}")
            for system in systems if number % 2 == 0 else systems[::-1]:
                found[system].append(self.beside(task, system))
        return found

    def ours(self, task: str, *words: str) -> Any:
        """Return what our worker finds."""
        self._on_step(f"{OURS}: {task}")
        return self._ask(sys.executable, "inferway_bench.index.worker", task, *words)

    def with_folder(self, *tasks: str) -> Any:
        """Return what the last of our tasks finds that share a folder."""
        with TemporaryDirectory(prefix="inferway-index-") as folder:
            return [self.ours(task, folder) for task in tasks][-1]

    def beside(self, task: str, system: str) -> Any:
        """Return what a system finds at a task of both; None of a peer that is left out."""
        python = sys.executable if system == OURS else self._peer
        return python and self._ask(python, "inferway_bench.index.beside", task, system)

    def _ask(self, python: str, module: str, *words: str) -> Any:
        plan = msgspec.json.encode(self._plan).decode()
        command = [python, "-m", module, plan, *words]
        done = subprocess.run(
            command, capture_output=True, text=True, env=with_sources(), check=False
        )
        if done.returncode != 0:
            raise BenchError(
                f"{module} {' '.join(words)}: ended with {done.returncode}: "
                f"{done.stderr.strip()[-500:]}"
            )
        return json.loads(done.stdout)


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


def _key_rows(plan: IndexPlan, found: Found) -> Iterator[Row]:
    for system, us in found.items():
        if system != PEER_ON_ONE:
            keys: Keys = {"tokens": plan.key_tokens, "system": system}
            yield Row("keys", keys, {"µs": us}, is_ours=system == OURS)


def _memory_rows(tasks: _Tasks) -> Iterator[Row]:
    yield Row("growth", {"system": OURS}, tasks.ours("growth"))
    peers = tasks.beside("memory", PEER)
    if peers:
        yield Row("growth", {"system": PEER}, {"peak": peers}, is_ours=False)


# what is required, and what is shown


def goals(run: Run) -> list[Goal]:
    """Return what is required of the index, judged."""
    short, *_, long = sorted(map(int, run.plan["prompts"]))
    match, match_long = (
        _found(run, "match", held="detached", blocks=length, system=OURS)
        for length in (short, long)
    )
    big, small = (_found(run, "events", **{"blocks of an event": n}) for n in (16, 1))
    quiet, growing = (_found(run, "stalls", loop=GROWS, when=when) for when in ("before", GROWING))
    loads, compacts = (_found(run, "stalls", loop=LOADS, when=w) for w in (LOADING, COMPACTING))
    decided = growing.median("decision p99") - quiet.median("decision p99")
    what = f"match of {long:,} blocks, time / that of {short:,} blocks"
    journal = _found(run, "journal").median("ratio")
    return [
        *_peer_goals(run, short),
        goal(what, match_long.median("µs") / match.median("µs"), most=3, unit=" ×"),
        goal("16-block events, blocks/s", big.interval("blocks/s"), least=300_000, form="{:,.0f}"),
        goal(
            "one-block events, events/s", small.interval("blocks/s"), least=60_000, form="{:,.0f}"
        ),
        goal("block keys", _found(run, "keys").repeats("µs"), most=60, unit=" µs"),
        goal("bytes of a block at the peak", _found(run, "growth").median("peak"), most=250),
        goal("longest stall while the index grows", growing.median("late"), most=5, unit=" ms"),
        goal("time that growing adds to a decision's p99", decided, most=2, unit=" ms"),
        goal("applying events with a journal, time / without", journal, most=1.15, unit=" ×"),
        goal("longest stall while snapshots are loaded", loads.median("late"), most=5, unit=" ms"),
        goal(
            "longest stall while a journal is compacted",
            compacts.median("late"),
            most=5,
            unit=" ms",
        ),
    ]


def _peer_goals(run: Run, short: int) -> list[Goal]:
    match = run.find("match", blocks=short, held="detached", system=PEER)
    event = run.find("events", system=PEER, **{"blocks of an event": 16})
    if match is None or event is None:
        return []
    what = f"match of {short:,} blocks, 8 engines, 1 % detached, the peer's time / ours"
    return [
        goal(what, match.interval("ratio"), least=10, form="{:.1f}", unit=" ×"),
        goal(
            "16-block events, the peer's time / ours", event.interval("ratio"), least=2, unit=" ×"
        ),
    ]


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


def _us(name: str = "µs", **more: Any) -> Column:
    return Column(name, form=three_digits, shown="range", better="lower", unit="µs", **more)


def _ms(name: str, head: str, better: Better | None = None) -> Column:
    return Column(name, head, "{:.2f}", better=better, unit="ms")


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
        "keys",
        "Time to compute the block keys of a prompt, in µs: Inferway from a buffer, the peer from "
        "a list",
        ["tokens"], [_us()], across="system", in_details=True,
    ),
    Table(
        "events",
        "Time of an event in µs, medians (lowest to highest): Inferway from the engine's payload "
        "to the index, the peer from a list of tokens",
        ["blocks of an event", "system"],
        [
            *(Column(step) for step in ("hash", "JSON", "apply")), _us(head="all but JSON"),
            Column("blocks/s", form="{:,.0f}", shown="value", better="higher"), _RATIO,
        ],
    ),
    Table(
        "growth",
        "Memory of one engine's blocks while its index grows to {memory_blocks:,}, in bytes for "
        "each block, and what forgetting them takes",
        ["system"],
        [
            Column("peak", form="{:.0f}", better="lower", unit="bytes"),
            Column("at the end", form="{:.0f}"),
            Column("forgetting", "CPU time, s", better="lower", unit="s"),
            Column("longest slice", "longest slice, ms"),
            Column("kept", "memory kept, %", "{:.0f}"),
        ],
    ),
    Table(
        "stalls", "Stalls in ms, while {loop}: one event loop (one run)", ["when"],
        [
            _ms("decision p50", "decision p50"), _ms("decision p99", "p99", "lower"),
            _ms("decision", "longest"), _ms("late p99", "other tasks late by, p99", "lower"),
            _ms("late", "longest"), _ms("own p99", "without other processes, p99"),
            _ms("own", "longest"),
        ],
        split=["loop"], in_details=True,
    ),
    Table(
        "journal",
        "`--state-dir` ([reliability.md](../reliability.md#snapshots)): µs of CPU time to apply a "
        "batch, with a journal and without, in turns (lowest to highest)",
        ["applying"],
        [
            _us("with"), _us("without"), Column("ratio", form="{:.2f}"),
            Column("bytes", "bytes of a block in the journal"),
            Column("compaction", "s of a compaction"),
        ],
        in_details=True,
    ),
    Table(
        "redis",
        "An index in Redis ([redis.md](../redis.md); a Unix socket): a prompt of 512 blocks that "
        "eight engines hold, in µs: medians, and the CPU time of a match",
        ["index"],
        [
            _us("match"), _us("match p99", head="p99"), _us("at once", head="32 at once, each"),
            _us("decision"), _us("own CPU", head="CPU time, gateway"),
            Column("server CPU", "CPU time, Redis"),
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
    quick=QUICK, goals=goals, losses=losses,
    question="how fast the index matches prompts and applies events, how much memory it takes and "
    "how long it stalls, compared with Dynamo's RadixTree",
    takes="10 minutes",
)  # fmt: skip
index = INDEX.command()
