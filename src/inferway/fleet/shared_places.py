"""The requests of all processes of a gateway within the limits of `flow`, counted in memory that
the processes share (`shared_columns`).

Each process writes numbers of its own, and each number is written whole, so nothing is locked. Two
processes may take the last place at the same moment: so there may be as many requests more than the
limit as there are processes beside the first.

A process whose requests wait looks every LOOK_SECONDS whether another process has freed a place. Of
processes that wait for one, that with the fewest requests takes it: a process that is busy would
take all that it frees itself, and those of another one would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Container, MutableSequence
from typing import cast

import numpy as np

from inferway.fleet.shared_columns import SharedColumns
from inferway.model import HolderId

LOOK_SECONDS = 0.005  # a look takes some microseconds
WAITS_SECONDS = 4 * LOOK_SECONDS  # a process that has not looked for so long gives way

# name of an engine -> the row that its requests are counted in; None: nothing is known of it
RowOf = Callable[[str], HolderId | None]


class SharedPlaces:
    """One process's part (`routing.limits.concurrency_limiter.OtherProcesses`)."""

    look_seconds = LOOK_SECONDS

    def __init__(self, columns: SharedColumns, row_of: RowOf, clock: Callable[[], float]) -> None:
        """`clock`: the same in all processes."""
        self._columns = columns
        self._row_of = row_of
        self._clock = clock
        self._place = columns.place
        # each has a number of each process; typeshed knows memory of integers alone
        numbers = cast("list[MutableSequence[float]]", [memoryview(e) for e in columns.places])
        self._in_flight, self._waiting, self._asked_at, self._changes = numbers

    @property
    def in_flight(self) -> int:
        return int(sum(self._in_flight))

    @property
    def others_waiting(self) -> int:
        return int(sum(self._waiting) - self._waiting[self._place])

    def let_in(self, most: int) -> bool:
        is_free = sum(self._in_flight) < most
        if is_free and any(self._asked_at):
            is_free = not self._gives_way()
        if self._waiting[self._place]:
            self._asked_at[self._place] = 0.0 if is_free else self._clock()
        return is_free

    def count(self, in_flight: int, waiting: int) -> None:
        self._in_flight[self._place] = in_flight
        self._waiting[self._place] = waiting
        if not waiting:
            self._asked_at[self._place] = 0.0

    def count_engine(self, name: str, requests: int) -> None:
        row = self._row_of(name)
        if row is not None:
            self._columns.at_engines[self._place, row] = requests
            self._changes[self._place] += 1.0

    def full(self, most: int) -> Container[str]:
        return FullEngines(self._columns, self._row_of, most)

    def _gives_way(self) -> bool:
        """Return whether another process that waits for a place has fewer requests."""
        own, lately = self._in_flight[self._place], self._clock() - WAITS_SECONDS
        pairs = zip(self._in_flight, self._asked_at, strict=True)
        return any(asked_at > lately and requests < own for requests, asked_at in pairs)


class FullEngines:
    """The engines with which requests of all processes hold `most` places, as of now."""

    __slots__ = ("_as_of", "_changes", "_columns", "_most", "_row_of", "_rows")

    def __init__(self, columns: SharedColumns, row_of: RowOf, most: int) -> None:
        self._columns = columns
        self._row_of = row_of
        self._most = most
        self._changes = memoryview(columns.places[-1])
        self._as_of = -1
        self._rows: frozenset[HolderId] = frozenset()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._row_of(name) in self._now()

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> frozenset[HolderId]:
        as_of = sum(self._changes)
        if as_of != self._as_of:
            requests = np.add.reduce(self._columns.at_engines[:, : len(self._columns)], 0)
            self._rows = frozenset(np.nonzero(requests >= self._most)[0].tolist())
            self._as_of = as_of
        return self._rows
