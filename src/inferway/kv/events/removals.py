"""Removals that an engine has told of late: they say afterwards why a request did not find what it
was believed to hold."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from msgspec import Struct

from inferway.kv.index.protocol import FULL_ATTENTION, Clear, Op, Remove
from inferway.model import BlockKey

MOST_KEYS = 4096  # remembered of one endpoint: 32 kB


class Removal(Struct, frozen=True, gc=False):
    """The keys that one event has dropped, and when that was heard."""

    seq: int | None  # of the batch that was the last one applied then
    at: float  # seconds
    keys: array[int] | None  # None: everything


@dataclass(slots=True)
class Removals:
    """The latest removals of one endpoint. Its event stream writes it."""

    most_keys: int = MOST_KEYS
    _told: deque[Removal] = field(default_factory=deque)
    _num_keys: int = 0

    def note(self, ops: Iterable[Op], seq: int | None, now: float) -> None:
        """Note what of these operations takes blocks away."""
        for op in ops:
            if isinstance(op, Remove):
                if op.group == FULL_ATTENTION and op.keys:
                    self._add(Removal(seq, now, array("Q", op.keys)))
            elif isinstance(op, Clear):
                self._told.clear()
                self._num_keys = 0
                self._add(Removal(seq, now, None))

    def of(self, keys: Collection[BlockKey], since: float) -> Removal | None:
        """Return the first that took one of these blocks away, or everything, at `since` or later;
        None if none is remembered."""
        wanted = set(keys)
        for each in self._told:
            if each.at >= since and (each.keys is None or not wanted.isdisjoint(each.keys)):
                return each
        return None

    def _add(self, removal: Removal) -> None:
        self._told.append(removal)
        self._num_keys += 1 if removal.keys is None else len(removal.keys)
        while self._num_keys > self.most_keys and len(self._told) > 1:
            oldest = self._told.popleft()
            self._num_keys -= 1 if oldest.keys is None else len(oldest.keys)
