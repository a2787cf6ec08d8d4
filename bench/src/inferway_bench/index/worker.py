"""What only a gateway has, measured: `python -m inferway_bench.index.worker PLAN TASK …` does one
task in a process of its own, and prints one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from inferway_bench.index.memory import growth
from inferway_bench.index.plan import IndexPlan
from inferway_bench.index.redis import redis_cost
from inferway_bench.index.snapshots import fill, journal_cost, loading
from inferway_bench.index.stalls import growing
from inferway_bench.index.workload import stay_on_one_core

# Somebody is to wait there for what else runs on a core: they have all of them.
_ON_AN_EVENT_LOOP: dict[str, Callable[..., Coroutine[Any, Any, object]]] = {
    "growing": growing,
    "redis": redis_cost,
    "journal_cost": journal_cost,
    "fill": fill,
    "loading": loading,
}


def main() -> None:
    """Do a task."""
    plan, (task, *words) = msgspec.json.decode(sys.argv[1], type=IndexPlan), sys.argv[2:]
    if task in _ON_AN_EVENT_LOOP:
        found = uvloop.run(_ON_AN_EVENT_LOOP[task](plan, *map(Path, words)))
    else:
        stay_on_one_core()
        found = growth(plan)
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main()
