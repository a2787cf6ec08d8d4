"""The Redis index for tests that know nothing of gateways, servers and waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import TypeVar

from tests.kv.index.redis_server import RedisServer, running_server

from inferway.kv.index.protocol import LastReport, MatchResult, Op, Tier
from inferway.kv.index.redis import RedisIndex, RedisLimits
from inferway.metrics import Family
from inferway.model import BlockKey, HolderId

T = TypeVar("T")

SECONDS = 60.0
PATIENT = RedisLimits(match=10.0, lease=60.0)


class AtRest:
    """One gateway that writes every holder it hears of; `apply` returns when Redis has it all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, index: RedisIndex) -> None:
        self._loop = loop
        self._index = index
        self._known: set[HolderId] = set()
        self.wait_for(index.start())

    async def start(self) -> None:
        """It is."""

    @property
    def shared(self) -> None:
        """None: it introduces the holders itself."""

    def apply(self, ops: Iterable[Op]) -> None:
        self.wait_for(self._apply(list(ops)))

    async def match(self, keys: Sequence[BlockKey]) -> MatchResult:
        return self.wait_for(self._index.match(keys))

    async def match_all(self, prompts: Sequence[Sequence[BlockKey]]) -> list[MatchResult]:
        return self.wait_for(self._index.match_all(prompts))

    def held(
        self, holder: HolderId, keys: Sequence[BlockKey], tier: Tier, group: int
    ) -> list[BlockKey]:
        return self._index.held(holder, keys, tier, group)

    def lower_tiers(self) -> Mapping[HolderId, Sequence[int]]:
        return self._index.lower_tiers()

    def num_evicted(self, holder: HolderId) -> int:
        return self._index.num_evicted(holder)

    def families(self) -> Iterable[Family]:
        return self._index.families()

    def num_blocks(self, holder: HolderId) -> int:
        return self._index.num_blocks(holder)

    async def close(self) -> None:
        await self._index.close()

    def wait_for(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    async def _apply(self, ops: Sequence[Op]) -> None:
        new = {op.holder for op in ops} - self._known
        for holder in new:
            self._index.introduce(holder, str(holder))
            self._index.tell(holder, LastReport("exact"))
        if new:
            self._known |= new
            await self._index.keep()
        self._index.apply(ops)
        await self._index.flushed()


class RedisAtRest:
    """Makes empty indexes, one after the other, all on one server; `close` at the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: RedisServer | None = None
        self._last: AtRest | None = None
        self._numbers = count()

    def __call__(self) -> AtRest:
        if self._loop is None or self._server is None:
            self._server = self._stack.enter_context(running_server())
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._loop.run_forever)
            thread.start()
            self._stack.callback(self._loop.close)
            self._stack.callback(thread.join)
            self._stack.callback(self._loop.call_soon_threadsafe, self._loop.stop)
        self._close_last()
        prefix = f"index-{next(self._numbers)}"
        index = RedisIndex(
            self._server.url, prefix=prefix, tier_weights=(1.0, 0.5, 0.25), limits=PATIENT
        )
        self._last = AtRest(self._loop, index)
        return self._last

    def close(self) -> None:
        self._close_last()
        self._stack.close()

    def _close_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.wait_for(last.close())
