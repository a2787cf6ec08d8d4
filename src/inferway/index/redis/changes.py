"""Keys that wait to be written: each once, in the order of its last change. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from inferway.model import BlockKey


class Changes:
    """First what is being written (a whole picture, or what had changed when the last of it was
    taken), then what changes meanwhile.

    What is taken is looked up when it is written. A key of the first kind that has changed again
    waits for its new turn, so that a set closed under "parent of" stays so after each of them.
    """

    def __init__(self, everything: Iterable[Iterable[BlockKey]] | None = None) -> None:
        """`everything`, in pieces, is to be written first."""
        self._new: dict[BlockKey, None] = {}
        self._going: Iterator[BlockKey] | None = None
        if everything is not None:
            self._going = chain.from_iterable(everything)

    def __bool__(self) -> bool:
        return self._going is not None or bool(self._new)

    def __len__(self) -> int:
        """How many have changed since the last began to be written."""
        return len(self._new)

    def note(self, keys: Sequence[BlockKey]) -> None:
        """These have changed, in this order."""
        new = self._new
        if not new.keys().isdisjoint(keys):
            for key in keys:
                new.pop(key, None)
        new.update(dict.fromkeys(keys))

    def take(self, limit: int) -> Sequence[BlockKey]:
        """The next keys to write. Fewer than `limit` may be all for now, but not the last."""
        if self._going is None:
            if not self._new:
                return ()
            self._going, self._new = iter(self._new), {}
        taken = list(islice(self._going, limit))
        if len(taken) < limit:
            self._going = None
        if self._new:
            return [key for key in taken if key not in self._new]
        return taken
