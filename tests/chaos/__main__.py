"""`python -m tests.chaos`: thousands of schedules on all cores, the figures into
docs/results/chaos.json. With --kind and --seed one of them, turn by turn. Status 1 on any wrong
belief.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tests.chaos.schedules import KINDS, Outcome, Schedule, run, shortest
from tests.console.records.planted import wrongly_named

from inferway_bench.machine import this_machine

RESULT = Path(__file__).parents[2] / "docs" / "results" / "chaos.json"
SCHEDULES = 400  # of each kind
MAX_FAILURES = 5  # shortened and shown
MISS_TROUBLE = 0.4  # of the events of engines with a planted miss


@dataclass(slots=True)
class Tally:
    """Of one kind of trouble."""

    schedules: int = 0
    states: Counter[str] = field(default_factory=Counter)  # of engines and ranks, in the end
    true_blocks: int = 0
    known_blocks: int = 0
    excluded: int = 0
    wrong: int = 0

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.excluded += outcome.excluded
        self.wrong += outcome.wrong is not None
        for verdict in outcome.verdicts:
            self.states[str(verdict.state)] += 1
            self.true_blocks += verdict.true_blocks
            self.known_blocks += verdict.known_blocks

    @property
    def share_known(self) -> float:
        return self.known_blocks / max(1, self.true_blocks)

    def report(self) -> dict[str, Any]:
        return {
            "schedules": self.schedules,
            "exact": self.states["exact"],
            "partial": self.states["partial"],
            "share_known": round(self.share_known, 4),
            "wrong": self.wrong,
            "excluded_messages": self.excluded,
        }


def main() -> int:
    options = _options()
    if options.seed is not None:
        outcome = run(
            Schedule(
                *(options.kind or "everything", options.seed, options.turns),
                options.workers,
            ),
            tell=_say,
        )
        _say(outcome.wrong or f"well: {[str(verdict) for verdict in outcome.verdicts]}")
        return outcome.wrong is not None
    kinds = [options.kind] if options.kind else list(KINDS)
    first, last = options.first, options.first + options.schedules
    ways = [True] if options.workers else [False, True]
    plan = [
        Schedule(kind, seed, workers=workers)
        for seed in range(first, last)
        for kind in kinds
        for workers in ways
    ]
    started = time.monotonic()
    tallies = {kind: Tally() for kind in kinds}
    of_workers = Tally()
    failures: list[Outcome] = []
    for outcome in _shown(_run_all(plan, options.jobs), len(plan)):
        schedule = outcome.schedule
        tally = of_workers if schedule.workers else tallies[schedule.kind]
        tally.add(outcome)
        if outcome.wrong is not None:
            failures.append(outcome)
    for outcome in failures[:MAX_FAILURES]:
        _say(f"{outcome.wrong}\n    {shortest(outcome.schedule).command}")
    for kind, tally in tallies.items():
        exact, partial = tally.states["exact"], tally.states["partial"]
        figures = f"{exact:5} exact {partial:5} partial  {tally.wrong} wrong"
        _say(f"{kind:40} {tally.share_known:6.1%} known {figures}")
    _say(f"{len(plan)} schedules, {len(failures)} with a wrong belief")
    _say(f"{of_workers.schedules} of them through hub and workers, {of_workers.wrong} wrong")
    misnamed = asyncio.run(_misnamed(range(first, last)))
    for sentence in misnamed[:MAX_FAILURES]:
        _say(sentence)
    _say(f"{options.schedules} planted misses, {len(misnamed)} named wrong")
    if options.out is not None:
        seconds = time.monotonic() - started
        _write(options.out, tallies, of_workers, first, last, seconds, len(misnamed))
    return bool(failures or misnamed)


async def _misnamed(seeds: Iterable[int]) -> list[str]:
    """What the records of planted misses say that is wrong."""
    found = [await wrongly_named(seed, MISS_TROUBLE) for seed in seeds]
    return [sentence for sentence in found if sentence is not None]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kind", choices=list(KINDS), help="this kind of trouble alone")
    parser.add_argument("--seed", type=int, help="one schedule, turn by turn")
    parser.add_argument("--workers", action="store_true", help="through hub and workers only")
    parser.add_argument("--turns", type=int, help="with --seed: only so many")
    parser.add_argument("--schedules", type=int, default=SCHEDULES, help="of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help=f"where the figures go, as {RESULT.name}")
    return parser.parse_args()


def _run_all(plan: list[Schedule], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(run, plan)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run, plan, chunksize=20)


def _shown(outcomes: Iterable[Outcome], total: int) -> Iterator[Outcome]:
    wrong = 0
    for i, outcome in enumerate(outcomes, 1):
        yield outcome
        wrong += outcome.wrong is not None
        if i % max(1, total // 50) == 0 or i == total:
            print(f"\r{i}/{total} schedules, {wrong} wrong", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def _write(
    path: Path,
    tallies: dict[str, Tally],
    of_workers: Tally,
    first: int,
    last: int,
    seconds: float,
    misnamed: int,
) -> None:
    total = Tally()
    for tally in tallies.values():
        total.schedules += tally.schedules
        total.states += tally.states
        total.true_blocks += tally.true_blocks
        total.known_blocks += tally.known_blocks
        total.excluded += tally.excluded
        total.wrong += tally.wrong
    result = {
        "machine": msgspec.to_builtins(this_machine()),
        "seeds": [first, last - 1],
        "seconds": round(seconds, 1),
        "total": total.report(),
        "through_workers": of_workers.report(),
        "planted_misses": {"planted": last - first, "named_wrong": misnamed},
        "kinds": {kind: tally.report() for kind, tally in tallies.items()},
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
