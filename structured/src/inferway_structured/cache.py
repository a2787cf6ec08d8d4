"""Caches in memory: of so many values or bytes, and of so many seconds. Neither locks: the owner
does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """Keeps values of no more than `most` together: so many, or so many bytes, as `put` is told.
    What was used longest ago goes first; what alone is over the limit is not kept."""

    def __init__(self, most: int) -> None:
        self.size = 0  # of all values together
        self._most = most
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: K) -> bool:
        return key in self._kept

    def get(self, key: K) -> V | None:
        """Return the value, which counts as used now; None if it is not kept."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def last_used(self) -> Iterator[V]:
        """Yield what is kept; what was used last comes first."""
        return (value for value, _ in reversed(self._kept.values()))

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Keep a value in place of what was there."""
        self.drop(key)
        if size > self._most:
            return
        self._kept[key] = (value, size)
        self.size += size
        while self.size > self._most:
            self.drop(next(iter(self._kept)))

    def drop(self, key: K) -> V | None:
        """Return the value, and keep it no longer."""
        value, size = self._kept.pop(key, (None, 0))
        self.size -= size
        return value


class Remembered(Generic[K, V]):
    """Keeps each value for `seconds`, and no more than `max_kept` of them: then the oldest goes."""

    def __init__(self, seconds: float, max_kept: int, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._max_kept = max_kept
        self._clock = clock
        self._kept: OrderedDict[K, tuple[V, float]] = OrderedDict()  # in the order they end

    def __len__(self) -> int:
        self._forget()
        return len(self._kept)

    def get(self, key: K) -> V | None:
        if not self._kept:
            return None
        self._forget()
        found = self._kept.get(key)
        return None if found is None else found[0]

    def put(self, key: K, value: V) -> None:
        self._kept.pop(key, None)
        self._kept[key] = (value, self._clock() + self._seconds)
        self._forget()

    def _forget(self) -> None:
        now = self._clock()
        while self._kept:
            key, (_, until) = next(iter(self._kept.items()))
            if until > now and len(self._kept) <= self._max_kept:
                return
            del self._kept[key]
