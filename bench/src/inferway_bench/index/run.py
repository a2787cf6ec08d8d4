"""`inferway bench index`, from what it needs to the whole run."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from inferway.prompts.prepare import cache_dir
from inferway_bench.index.holdings import Fleet
from inferway_bench.index.memory import Growth
from inferway_bench.index.plan import Plan
from inferway_bench.index.results import Case, EventPath, IndexRun, Keys, PeerSeconds
from inferway_bench.index.shared import SharedCost
from inferway_bench.index.snapshot import Snapshots
from inferway_bench.index.stalls import Stalls
from inferway_bench.index.workload import SHAPES
from inferway_bench.machine import command_line, this_machine
from inferway_bench.processes import BenchError, with_sources
from inferway_bench.progress import OnStep
from inferway_bench.venvs import install_venv

PEER = "ai-dynamo-runtime"
PEER_VERSION = "1.6.1"

Json = dict[str, Any]


def run_index(plan: Plan, on_step: OnStep, *, beside_peer: bool = True) -> IndexRun:
    """Raises BenchError, with the cure, when the peer cannot be had or an answer is wrong."""
    machine = this_machine()
    peer = install_peer(on_step) if beside_peer else None
    workers = _Workers(plan, peer, on_step)
    rounds = [workers.round(number) for number in range(plan.rounds)]
    on_step("ours: memory")
    growth = msgspec.convert(workers.ours("memory"), Growth)
    on_step("ours: memory by engines")
    fleets = msgspec.convert(workers.ours("engines"), list[Fleet])
    on_step("ours: stalls")
    waited = msgspec.convert(workers.ours("stalls"), Stalls)
    on_step("ours: through Redis")
    through_redis = msgspec.convert(workers.ours("shared"), SharedCost | None)
    on_step("ours: snapshots")
    parts = {"cost": "journal_cost", "compaction": "compacting", "loading": "loading"}
    snapshots = msgspec.convert({name: workers.ours(p) for name, p in parts.items()}, Snapshots)
    return IndexRun(
        machine=machine,
        command=shlex.join(command_line()),
        peer=f"{PEER} {PEER_VERSION}" if peer else None,
        plan=plan,
        cases=_cases(plan, rounds),
        event_paths=_event_paths(plan, rounds),
        keys=Keys(
            tokens=plan.key_tokens,
            ours_us=[found.ours["keys"]["us"] for found in rounds],
            peer_us=[found.peers["keys"]["us"] for found in rounds if found.peers],
        ),
        growth=growth,
        fleets=fleets,
        stalls=waited,
        peer_bytes_per_block=workers.peers("memory")["bytes_per_block"] if peer else None,
        shared=through_redis,
        snapshots=snapshots,
    )


def install_peer(on_step: OnStep) -> Path:
    """The interpreter that has the peer. Raises BenchError."""
    cure = "let this machine reach PyPI, or leave the peer out with --no-peer"
    wanted = [f"{PEER}=={PEER_VERSION}"]
    return install_venv(cache_dir() / "dynamo", wanted, on_step, cure).executable("python")


@dataclass
class Round:
    """Results by task."""

    ours: Json = field(default_factory=dict)
    peers: Json = field(default_factory=dict)
    on_one_core: Json = field(default_factory=dict)


class _Workers:
    """Each task in a fresh process."""

    def __init__(self, plan: Plan, peer: Path | None, on_step: OnStep) -> None:
        self._plan = msgspec.json.encode(plan).decode()
        self._rounds = plan.rounds
        self._peer = peer
        self._on_step = on_step

    def round(self, number: int) -> Round:
        """What both systems take for each task; who is first changes."""
        found = Round()
        for task in ("match", "events", "keys"):
            self._on_step(f"round {number + 1} of {self._rounds}: {task}")
            turns: list[tuple[Json, Callable[[], Any]]] = [
                (found.ours, partial(self.ours, task)),
            ]
            if self._peer is not None:
                turns += [
                    (found.peers, partial(self.peers, task, "all")),
                    (found.on_one_core, partial(self.peers, task, "one")),
                ]
            for results, ask in turns if number % 2 == 0 else turns[::-1]:
                results[task] = ask()
        return found

    def ours(self, task: str) -> Any:
        return self._ask([sys.executable, "-m", "inferway_bench.index.worker", task])

    def peers(self, task: str, cores: str = "all") -> Any:
        worker = "inferway_bench.index.peer_worker"
        return self._ask([str(self._peer), "-m", worker, task, cores])

    def _ask(self, command: Sequence[str]) -> Any:
        words = [*command, self._plan]
        done = subprocess.run(
            words, capture_output=True, text=True, env=with_sources(), check=False
        )
        if done.returncode != 0:
            raise BenchError(
                f"{' '.join(command)}: ended with {done.returncode}: {done.stderr.strip()[-500:]}"
            )
        return json.loads(done.stdout)


def _cases(plan: Plan, rounds: Sequence[Round]) -> list[Case]:
    cases = []
    for length in plan.prompts:
        for shape in SHAPES:
            name = f"{length} {shape}"
            ours, peers, on_one_core = (
                [results["match"][name] for results in side if results]
                for side in zip(*((r.ours, r.peers, r.on_one_core) for r in rounds), strict=True)
            )
            if not all(found["right"] for found in ours):
                raise BenchError(f"match of {name}: our answers are not those of a walk")
            cases.append(
                Case(
                    length=length,
                    shape=shape,
                    ours_us=[found["us"] for found in ours],
                    peer_us=[found["us"] for found in peers],
                    peer_one_core_us=[found["us"] for found in on_one_core],
                    peer_right=all(found["right"] for found in (*peers, *on_one_core)),
                )
            )
    return cases


def _event_paths(plan: Plan, rounds: Sequence[Round]) -> list[EventPath]:
    return [
        EventPath(
            blocks=blocks,
            events=events,
            ours_seconds=[s for found in rounds for s in found.ours["events"][str(blocks)]],
            peer_seconds=_peer_runs([found.peers for found in rounds], blocks),
            peer_one_core_seconds=_peer_runs([found.on_one_core for found in rounds], blocks),
        )
        for blocks, events in plan.events.items()
    ]


def _peer_runs(rounds: Sequence[Json], blocks: int) -> list[PeerSeconds]:
    runs = [run for results in rounds if results for run in results["events"][str(blocks)]]
    return [PeerSeconds(hashing, writing, applying) for hashing, writing, applying in runs]
