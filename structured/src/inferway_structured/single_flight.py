"""A value that is the same for everybody who asks for it: worked out once, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from inferway_structured.cache import RecentlyUsed

_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Keeps the `most` values that were asked for last, by their keys. Who asks while a value is
    being worked out waits for the same work, and who stops waiting leaves it to the others."""

    def __init__(self, most: int) -> None:
        self._known: RecentlyUsed[str, _T] = RecentlyUsed(most)
        self._coming: dict[str, asyncio.Future[_T]] = {}

    def __len__(self) -> int:
        """How many values are kept."""
        return len(self._known)

    def known(self, key: str) -> _T | None:
        """Return the value if it is kept."""
        return self._known.get(key)

    def keep(self, key: str, value: _T) -> None:
        """Keep a value that was worked out elsewhere."""
        self._known.put(key, value)

    async def get(self, key: str, work: Callable[[], Awaitable[_T]]) -> _T:
        """Return the value that is kept, or the result of `work`. Raises what `work` raises, which
        is not kept."""
        found = self.known(key)
        if found is not None:
            return found
        coming = self._coming.get(key)
        if coming is None:
            coming = self._coming[key] = asyncio.ensure_future(work())
            coming.add_done_callback(lambda done: self._came(key, done))
        return await asyncio.shield(coming)

    def _came(self, key: str, done: asyncio.Future[_T]) -> None:
        del self._coming[key]
        if not done.cancelled() and done.exception() is None:
            self.keep(key, done.result())
