"""What an index in Redis costs beside the one in memory: the same decisions by both, taking turns.

The server runs beside us on this machine, behind a Unix socket, as near as it can be.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Index, LastReport
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
    from inferway.kv.index.redis import RedisIndex, RedisLimits  # an extra

    socket, log = folder / "s", folder / "log"
    listen = ["--port", "0", "--unixsocket", str(socket)]
    with running([binary, *listen, "--save", "", "--dir", str(folder)], log) as process:
        wait_until(socket.exists, "redis-server listens", process, log)
        index = RedisIndex(f"unix://{socket}", limits=RedisLimits(match=5.0, lease=60.0))
        for engine in range(NUM_ENGINES):
            index.introduce(engine, f"engine-{engine}")
            index.tell(engine, LastReport("exact"))
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
    """One of the two indexes, and what was seen of it, in seconds."""

    def __init__(
        self, index: Index, tokens: Sequence[TokenIds], plan: IndexPlan, server: int | None = None
    ) -> None:
        hasher = BlockHasher(plan.block_size)
        self._keys = [hasher.keys(prompt) for prompt in tokens]
        self._tokens = tokens
        self._index = index
        self._given = GivenTokens(tokens[0])
        self._director = idle_director(index, self._given, NUM_ENGINES, plan.block_size)
        self._server = server
        self._times: dict[str, list[float]] = defaultdict(list)

    async def round(self) -> None:
        """Match and decide every prompt once."""
        cpu = self._cpu()
        for keys in self._keys:
            self._times["match"].append(await self._match(keys))
        for name, seconds in self._cpu().items():
            self._times[name].append((seconds - cpu[name]) / len(self._keys))
        for prompt in self._tokens:
            self._given.token_ids = prompt
            start = time.perf_counter()
            await decide(self._director)
            self._times["decision"].append(time.perf_counter() - start)
        start = time.perf_counter()
        await asyncio.gather(*(self._match(keys) for keys in self._keys[:_AT_ONCE]))
        self._times["at once"].append((time.perf_counter() - start) / _AT_ONCE)

    def microseconds(self) -> dict[str, float]:
        """Return the medians, the 99th percentile of a match, and the mean CPU time of a match."""
        matches = sorted(self._times["match"])
        found = {
            name: fmean(times) if "CPU" in name else median(times)
            for name, times in self._times.items()
        }
        found["match p99"] = matches[len(matches) * 99 // 100]
        return {name: seconds * 1e6 for name, seconds in found.items()}

    async def _match(self, keys: Sequence[BlockKey]) -> float:
        """Seconds. Raises IndexAwayError."""
        start = time.perf_counter()
        found = await self._index.match(keys)
        seconds = time.perf_counter() - start
        assert found.blocks == dict.fromkeys(range(NUM_ENGINES), PROMPT_BLOCKS), found.blocks
        return seconds

    def _cpu(self) -> dict[str, float]:
        server = 0.0 if self._server is None else cpu_seconds(self._server)
        return {"own CPU": time.process_time(), "server CPU": server}
