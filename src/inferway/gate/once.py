"""An answer that is the same for everybody who asks: worked out once, and kept."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Once(Generic[_T]):
    """By key; the `most` that were asked for last. An error is not kept. Who stops waiting leaves
    the work to the others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[str, _T] = OrderedDict()
        self._coming: dict[str, asyncio.Future[_T]] = {}

    def known(self, key: str) -> _T | None:
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
        return found

    async def get(self, key: str, work: Callable[[], Awaitable[_T]]) -> _T:
        """Raises what `work` raises."""
        found = self.known(key)
        if found is not None:
            return found
        coming = self._coming.get(key)
        if coming is None:
            coming = self._coming[key] = asyncio.ensure_future(work())
            coming.add_done_callback(lambda done: self._came(key, done))
        return await asyncio.shield(coming)

    def forget(self, key: str) -> None:
        self._known.pop(key, None)

    def _came(self, key: str, done: asyncio.Future[_T]) -> None:
        del self._coming[key]
        if done.cancelled() or done.exception() is not None:
            return
        self._known[key] = done.result()
        if len(self._known) > self._most:
            self._known.popitem(last=False)
