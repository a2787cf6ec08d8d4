"""LoRA adapters of the candidates, by row and by name.

On a busy fleet what runs changes with each scrape, and a request asks for one adapter of all the
engines: so a change is written down where it happens, and nobody goes through all engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from inferway.model import Adapters

Mask = NDArray[np.bool_]

_NOTHING = Adapters()


class _AllRows:
    """The adapters of all rows. Of names that are nowhere there is no mask."""

    __slots__ = ("each", "room", "running", "waiting")

    def __init__(self, adapters: Sequence[Adapters]) -> None:
        self.each = [_NOTHING] * len(adapters)
        self.room = np.zeros(len(adapters), np.bool_)
        self.running: dict[str, Mask] = {}
        self.waiting: dict[str, Mask] = {}
        for row, each in enumerate(adapters):
            if each is not _NOTHING:
                self.tell(row, each)

    def tell(self, row: int, adapters: Adapters) -> None:
        before, self.each[row] = self.each[row], adapters
        self.room[row] = len(adapters.running) + len(adapters.waiting) < adapters.most
        self._mark(self.running, row, before.running, adapters.running)
        self._mark(self.waiting, row, before.waiting, adapters.waiting)

    def _mark(
        self, masks: dict[str, Mask], row: int, before: frozenset[str], now: frozenset[str]
    ) -> None:
        for name in before - now:
            masks[name][row] = False
            if not masks[name].any():
                del masks[name]
        for name in now - before:
            if name not in masks:
                masks[name] = np.zeros(len(self.each), np.bool_)
            masks[name][row] = True


class AdapterRows(Sequence[Adapters]):
    """The adapters of each row. Masks that it returns must not be written to."""

    __slots__ = ("_at", "_told")

    def __init__(self, adapters: Sequence[Adapters]) -> None:
        self._told = _AllRows(adapters)
        self._at: NDArray[np.intp] | None = None  # which of all rows; None: all

    def tell(self, row: int, adapters: Adapters) -> None:
        """Take over the adapters of one of all rows. Those that were narrowed from these see it,
        too."""
        self._told.tell(row, adapters)

    def narrowed(self, rows: NDArray[np.intp]) -> AdapterRows:
        """Return a table of these rows alone."""
        some = AdapterRows.__new__(AdapterRows)
        some._told, some._at = self._told, rows if self._at is None else self._at[rows]
        return some

    @property
    def room(self) -> Mask:
        """The rows where one more adapter may run."""
        return self._told.room if self._at is None else self._told.room[self._at]

    def running(self, name: str) -> Mask | None:
        """Return where that adapter runs; None: nowhere."""
        return self._some(self._told.running.get(name))

    def waiting(self, name: str) -> Mask | None:
        """Return where that adapter waits to be loaded; None: nowhere."""
        return self._some(self._told.waiting.get(name))

    def _some(self, mask: Mask | None) -> Mask | None:
        return mask if mask is None or self._at is None else mask[self._at]

    def __len__(self) -> int:
        return len(self._told.each) if self._at is None else len(self._at)

    @overload
    def __getitem__(self, row: int) -> Adapters: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[Adapters]: ...
    def __getitem__(self, row: int | slice) -> Adapters | Sequence[Adapters]:
        if isinstance(row, slice):
            return [self[each] for each in range(len(self))[row]]
        return self._told.each[row if self._at is None else self._at[row]]


def adapter_rows(adapters: Sequence[Adapters]) -> AdapterRows:
    """Return a table's adapters by row and name: the fleet's own, or made of those in the table."""
    return adapters if isinstance(adapters, AdapterRows) else AdapterRows(adapters)
