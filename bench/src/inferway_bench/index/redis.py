"""What an index in Redis costs beside the one in memory: the same decisions by both, taking turns.

The server runs beside us on this machine, behind a Unix socket, as near as it can be.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from inferway.blocks.keys import BlockHasher
from inferway.index.memory import MemoryIndex
from inferway.index.protocol import Index
from inferway.model import BlockKey, TokenIds
from inferway_bench.cpu import cpu_seconds
from inferway_bench.idle_engines import GivenTokens, idle_director
from inferway_bench.index.plan import IndexPlan
from inferway_bench.index.stalls import PROMPT_BLOCKS, decide, held_prompts
from inferway_bench.index.workload import NUM_ENGINES
from inferway_bench.processes import running, wait_until

_AT_ONCE = 32
_SERVERS = ("redis-server", "valkey-server")


async def redis_cost(plan: IndexPlan, folder: Path) -> dict[str, object] | None:
    """Return each index's microseconds, or None where there is no server to start, or no redis-py
    to ask it with."""
    binary = next((found for name in _SERVERS if (found := shutil.which(name))), None)
    if binary is None or find_spec("redis") is None:
        return None
    from inferway.index.redis import RedisIndex, RedisLimits  # an extra

    socket, log = folder / "s", folder / "log"
    listen = ["--port", "0", "--unixsocket", str(socket)]
    with running([binary, *listen, "--save", "", "--dir", str(folder)], log) as process:
        wait_until(socket.exists, "redis-server listens", process, log)
        index = RedisIndex(f"unix://{socket}", limits=RedisLimits(match=5.0, lease=60.0))
        for engine in range(NUM_ENGINES):
            index.introduce(engine, f"engine-{engine}")
            index.tell(engine, "exact")
        await index.start()
        try:
            memory = MemoryIndex()
            tokens = held_prompts(plan, [memory, index])
            sides = {
                "in memory": _Side(memory, tokens, plan),
                "in Redis": _Side(index, tokens, plan, process.pid),
            }
            await index.flushed()
            for side in [*sides.values()] * plan.match_repeats:  # in turns
                await side.round()
        finally:
            await index.close()
    return {name: side.microseconds() for name, side in sides.items()}


class _Side:
    """One of the two indexes, and what was seen of it."""

    def __init__(
        self, index: Index, tokens: Sequence[TokenIds], plan: IndexPlan, server: int | None = None
    ) -> None:
        hasher = BlockHasher(plan.block_size)
        self._keys = [hasher.keys(prompt) for prompt in tokens]
        self._index = index
        self._tokens = tokens
        self._given = GivenTokens(tokens[0])
        self._director = idle_director(index, self._given, NUM_ENGINES, plan.block_size)
        self._server = server
        self._matches: list[float] = []
        self._decisions: list[float] = []
        self._at_once: list[float] = []
        self._own_cpu = self._server_cpu = 0.0

    async def round(self) -> None:
        """Match and decide every prompt once."""
        own, server = time.process_time(), self._server_seconds()
        for keys in self._keys:
            self._matches.append(await self._match(keys))
        self._own_cpu += time.process_time() - own
        self._server_cpu += self._server_seconds() - server
        for prompt in self._tokens:
            self._given.token_ids = prompt
            start = time.perf_counter()
            await decide(self._director)
            self._decisions.append(time.perf_counter() - start)
        start = time.perf_counter()
        await asyncio.gather(*(self._match(keys) for keys in self._keys[:_AT_ONCE]))
        self._at_once.append((time.perf_counter() - start) / _AT_ONCE)

    def microseconds(self) -> dict[str, float]:
        """Return medians, and the mean CPU time (user and system) of a match."""
        num = len(self._matches)
        seconds = {
            "match": median(self._matches),
            "match p99": sorted(self._matches)[num * 99 // 100],
            "at once": median(self._at_once),
            "decision": median(self._decisions),
            "own CPU": self._own_cpu / num,
            "server CPU": self._server_cpu / num,
        }
        return {name: value * 1e6 for name, value in seconds.items()}

    async def _match(self, keys: Sequence[BlockKey]) -> float:
        """Seconds. Raises IndexAwayError."""
        start = time.perf_counter()
        found = await self._index.match(keys)
        seconds = time.perf_counter() - start
        if found.blocks != dict.fromkeys(range(NUM_ENGINES), PROMPT_BLOCKS):
            raise AssertionError(f"{self._index}: a wrong answer: {found.blocks}")
        return seconds

    def _server_seconds(self) -> float:
        return 0.0 if self._server is None else cpu_seconds(self._server)
