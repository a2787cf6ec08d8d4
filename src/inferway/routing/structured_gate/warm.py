"""Tells an engine what it will have to compile while the prompt is still on its way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from inferway.errors import UpstreamError
from inferway.model import Endpoint
from inferway.routing.structured_gate.counts import GateCounts
from inferway_structured.cache import RecentlyUsed
from inferway_structured.decoding import UNREADABLE
from inferway_structured.spec import OutputConstraint, packed
from inferway_structured.turns import TokenBucket

log = logging.getLogger("inferway.gate")

MAX_OPEN = 4  # at one engine
MAX_OPEN_ALL = 32
MAX_BYTES = 64 * 1024
MAX_ENGINES = 1024  # whose rate is remembered
PATH = "/v1/structured/warm"

# (endpoint, body) -> status and body of the answer; raises UpstreamError
Post = Callable[[Endpoint, bytes], Awaitable[tuple[int, bytes]]]
Took = Callable[[str, float], None]  # (key, milliseconds)


class _Warmed(msgspec.Struct):
    """The answer of an engine about one spec."""

    compile_ms: float | None = None


_TOLD = msgspec.json.Decoder(_Warmed)


class Warmer:
    """Tells engines of shapes that are on their way. What cannot be sent now is dropped: the
    request itself brings the spec a moment later. `took` is called with what engines say of their
    compile times."""

    def __init__(
        self,
        post: Post,
        per_second: float,
        counts: GateCounts,
        took: Took,
        clock: Callable[[], float],
        is_busy: Callable[[], bool],
    ) -> None:
        """`is_busy`: whether we have enough to do with the rest."""
        self._post = post
        self._per_second = per_second
        self._counts = counts
        self._took = took
        self._clock = clock
        self._is_busy = is_busy
        self._buckets: RecentlyUsed[str, TokenBucket] = RecentlyUsed(MAX_ENGINES)
        self._open: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, endpoint: Endpoint, asked: OutputConstraint) -> None:
        """Tell the engine of the shape in the background, or drop it."""
        engine = endpoint.engine
        if not self._may(engine) or len(asked.spec.text) > MAX_BYTES:
            self._counts.warm("dropped")
            return
        self._open[engine] = self._open.get(engine, 0) + 1
        task = asyncio.ensure_future(self._tell(endpoint, asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _may(self, engine: str) -> bool:
        if self._is_busy() or len(self._tasks) >= MAX_OPEN_ALL:
            return False
        if self._open.get(engine, 0) >= MAX_OPEN:
            return False
        bucket = self._buckets.get(engine) or TokenBucket(self._per_second, self._clock)
        self._buckets.put(engine, bucket)
        return bucket.take()

    async def _tell(self, endpoint: Endpoint, asked: OutputConstraint) -> None:
        try:
            status, answer = await self._post(endpoint, packed(asked.spec))
            self._counts.warm("sent" if status < 300 else "failed")
            if status < 300:
                told = _TOLD.decode(answer)
                if told.compile_ms is not None:
                    self._took(asked.spec.key, told.compile_ms)
        except (UpstreamError, *UNREADABLE):
            self._counts.warm("failed")
        finally:
            self._open[endpoint.engine] -= 1
            if not self._open[endpoint.engine]:
                del self._open[endpoint.engine]
