"""Memory by the number of engines, for the same number of blocks held."""

from __future__ import annotations

import random
import subprocess
import sys

import msgspec

from inferway.events.apply import EngineBlocks
from inferway.events.event import BlockStored
from inferway.index.memory import MemoryIndex
from inferway_bench.index.measuring import resident_bytes
from inferway_bench.index.plan import Plan

BLOCKS = 16
PROMPT = 128  # blocks, of which the first are a system prompt
SYSTEM = 16
KINDS = {
    "own": "every engine has prompts of its own",
    "shared": "every prompt is held by one to three engines, its first eighth by all",
    "same": "all engines have the same prompts",
}


class Fleet(msgspec.Struct, frozen=True):
    """One number of engines."""

    engines: int
    kind: str
    held: int  # blocks, once for each engine that has them
    blocks: int  # different ones
    values: int  # different sets of engines
    bytes_per_held: float


def memory_by_engines(plan: Plan) -> list[Fleet]:
    """Each measured in a process of its own."""
    return [_ask(plan, engines, kind) for kind in KINDS for engines in plan.engines]


def _ask(plan: Plan, engines: int, kind: str) -> Fleet:
    words = [sys.executable, "-m", __name__, str(engines), kind, msgspec.json.encode(plan).decode()]
    done = subprocess.run(words, capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=Fleet)


def measure(plan: Plan, engines: int, kind: str) -> Fleet:
    index = MemoryIndex()
    fleet = [EngineBlocks(i, plan.block_size, holdings=index) for i in range(engines)]
    fill = _Filling(index, fleet, plan)
    fill.prompt(range(engines), 0)  # what is made once
    before, start = resident_bytes(), fill.held
    numbers = random.Random(plan.seed)
    while fill.held - start < plan.engine_blocks:
        if kind == "own":
            holders = [fill.prompts % engines]
        elif kind == "same":
            holders = list(range(engines))
        else:
            holders = numbers.sample(range(engines), min(engines, numbers.randint(1, 3)))
        fill.prompt(holders, SYSTEM if kind == "shared" else 0)
    held = fill.held - start
    taken = resident_bytes() - before
    return Fleet(engines, kind, held, index.num_keys, index.num_values, taken / held)


class _Filling:
    """Prompts, stored event by event."""

    def __init__(self, index: MemoryIndex, fleet: list[EngineBlocks], plan: Plan) -> None:
        self.held = 0
        self.prompts = 0
        self._index = index
        self._fleet = fleet
        self._size = plan.block_size
        self._numbers = random.Random(plan.seed)
        self._system_hashes = [self._numbers.getrandbits(64) for _ in range(SYSTEM)]
        for engine in range(len(fleet)):
            self._store(engine, self._system_hashes, None, 7)

    def prompt(self, holders: list[int] | range, shared: int) -> None:
        """A new prompt, behind the system prompt if `shared`."""
        self.prompts += 1
        parent = self._system_hashes[-1] if shared else None
        for first in range(shared, PROMPT, BLOCKS):
            hashes = [self._numbers.getrandbits(64) for _ in range(BLOCKS)]
            for holder in holders:
                self._store(holder, hashes, parent, self.prompts << 8 | first)
            parent = hashes[-1]

    def _store(self, holder: int, hashes: list[int], parent: int | None, token: int) -> None:
        tokens = [token] * (len(hashes) * self._size)
        event = BlockStored(
            block_hashes=list(map(int, map(str, hashes))),  # integers of its own, as from the wire
            parent_hash=parent,
            token_ids=tokens,
            block_size=self._size,
        )
        self._index.apply(self._fleet[holder].apply(event))
        self.held += len(hashes)


def main() -> None:
    engines, kind, plan = sys.argv[1:]
    fleet = measure(msgspec.json.decode(plan, type=Plan), int(engines), kind)
    sys.stdout.write(msgspec.json.encode(fleet).decode())


if __name__ == "__main__":
    main()
