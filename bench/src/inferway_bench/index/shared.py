"""What a shared index costs beside the one in memory: the same decisions by both, taking turns.

A decision is the director's, from a prompt's tokens to the ranked engines: block keys, match,
scores. The server runs beside us on this machine, behind a Unix socket, as near as it can be.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import uvloop

from inferway.blocks.keys import BlockHasher
from inferway.director import Director
from inferway.index.memory import MemoryIndex
from inferway.index.protocol import Index, LastReport, Store
from inferway.index.speculative import SpeculativeOverlay
from inferway.model import BlockKey, RequestHead, TokenIds
from inferway.scheduling.load import load_scheduling
from inferway.steps.match import Matcher
from inferway_bench.cpu import cpu_seconds
from inferway_bench.index.eight_engines import EightEngines, GivenTokens
from inferway_bench.index.measuring import median
from inferway_bench.index.plan import Plan
from inferway_bench.index.workload import NUM_ENGINES, VOCABULARY
from inferway_bench.processes import running, wait_until

BLOCKS = 512
_PROMPTS = 50
_AT_ONCE = 32
_BODY = b'{"model": "m", "prompt": "given"}'
_HEAD = RequestHead("POST", "/v1/completions", "", ())
_SERVERS = ("redis-server", "valkey-server")


class Cost(msgspec.Struct, frozen=True):
    """Microseconds: medians of all, or means of CPU time (user and system)."""

    match: float
    match_p99: float
    decision: float
    at_once: float  # a match, when 32 are asked for at a time
    own_cpu: float  # of a match, in this process
    server_cpu: float  # of a match, in the server


class SharedCost(msgspec.Struct, frozen=True):
    """Of prompts of 512 blocks that eight engines hold."""

    server: str
    memory: Cost
    shared: Cost


def shared(plan: Plan) -> SharedCost | None:
    """None where there is no server to start, or no redis-py to ask it with."""
    binary = next((found for name in _SERVERS if (found := shutil.which(name))), None)
    if binary is None or find_spec("redis") is None:
        return None
    with TemporaryDirectory(prefix="redis-") as folder:
        socket = Path(folder) / "s"
        listen = ["--port", "0", "--unixsocket", str(socket)]
        command = [binary, *listen, "--save", "", "--dir", folder]
        with running(command, Path(folder) / "log") as process:
            wait_until(socket.exists, "redis-server listens", process, Path(folder) / "log")
            return uvloop.run(_measured(plan, Path(binary).name, f"unix://{socket}", process.pid))


async def _measured(plan: Plan, name: str, url: str, pid: int) -> SharedCost:
    from inferway.index.redis import RedisIndex, RedisLimits  # an extra

    tokens = list(_prompts(plan))
    memory = MemoryIndex()
    index = RedisIndex(url, limits=RedisLimits(match=5.0, lease=60.0))
    for engine in range(NUM_ENGINES):
        index.introduce(engine, f"engine-{engine}")
        index.tell(engine, LastReport("exact"))
    await index.start()
    try:
        sides = [_Side(memory, tokens, plan), _Side(index, tokens, plan, pid)]
        await index.flushed()
        for _ in range(plan.match_repeats):
            for side in sides:
                await side.round()
        return SharedCost(name, *(side.cost() for side in sides))
    finally:
        await index.close()


class _Side:
    """One of the two indexes, and what was seen of it."""

    def __init__(
        self, index: Index, tokens: Sequence[TokenIds], plan: Plan, server: int | None = None
    ) -> None:
        hasher = BlockHasher(plan.block_size)
        self._keys = [hasher.keys(prompt) for prompt in tokens]
        for keys in self._keys:
            index.apply([Store(engine, keys) for engine in range(NUM_ENGINES)])
        self._index = index
        self._tokens = tokens
        self._given = GivenTokens(tokens[0])
        fleet = EightEngines(plan.block_size, self._given)
        self._director = Director(
            fleet, Matcher(index, SpeculativeOverlay()), load_scheduling(None), time.monotonic
        )
        self._server = server
        self._matches: list[float] = []
        self._decisions: list[float] = []
        self._at_once: list[float] = []
        self._own_cpu = self._server_cpu = 0.0

    async def round(self) -> None:
        """Every prompt once."""
        own, server = time.process_time(), self._server_seconds()
        for keys in self._keys:
            self._matches.append(await self._match(keys))
        self._own_cpu += time.process_time() - own
        self._server_cpu += self._server_seconds() - server
        for prompt in self._tokens:
            self._decisions.append(await self._decide(prompt))
        start = time.perf_counter()
        await asyncio.gather(*(self._match(keys) for keys in self._keys[:_AT_ONCE]))
        self._at_once.append((time.perf_counter() - start) / _AT_ONCE)

    def cost(self) -> Cost:
        return Cost(
            match=median(self._matches) * 1e6,
            match_p99=sorted(self._matches)[len(self._matches) * 99 // 100] * 1e6,
            decision=median(self._decisions) * 1e6,
            at_once=median(self._at_once) * 1e6,
            own_cpu=self._own_cpu / len(self._matches) * 1e6,
            server_cpu=self._server_cpu / len(self._matches) * 1e6,
        )

    async def _match(self, keys: Sequence[BlockKey]) -> float:
        """Seconds. Raises IndexAwayError."""
        start = time.perf_counter()
        found = await self._index.match(keys)
        seconds = time.perf_counter() - start
        if found.blocks != dict.fromkeys(range(NUM_ENGINES), BLOCKS):
            raise AssertionError(f"{self._index}: a wrong answer: {found.blocks}")
        return seconds

    async def _decide(self, prompt: TokenIds) -> float:
        self._given.token_ids = prompt
        start = time.perf_counter()
        journey = self._director.open(_HEAD, _BODY)
        await journey.decide()
        seconds = time.perf_counter() - start
        journey.close("ok")
        return seconds

    def _server_seconds(self) -> float:
        return 0.0 if self._server is None else cpu_seconds(self._server)


def _prompts(plan: Plan) -> list[TokenIds]:
    numbers = np.random.default_rng(plan.seed)
    length = BLOCKS * plan.block_size
    return [numbers.integers(0, VOCABULARY, size=length, dtype=np.uint32) for _ in range(_PROMPTS)]
