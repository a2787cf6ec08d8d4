"""What plugins remember of endpoints: what follows from a list of them alone, computed once for
each list, and their places in the tables of what was learned."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from inferway.model import Endpoint, Rows

FORGET_SECONDS = 3600.0
MOST_LISTS = 64  # remembered: one for each model, and some old ones

_T = TypeVar("_T")


class PerEndpoint(Generic[_T]):
    """Remembers `compute` of a list of endpoints. Lists are told apart by identity, for the fleet
    makes a new one when an endpoint or one of its labels changes; they must not change."""

    __slots__ = ("_compute", "_found")

    def __init__(self, compute: Callable[[Sequence[Endpoint]], _T]) -> None:
        self._compute = compute
        # The list is kept too: while it is, no other has its id.
        self._found: OrderedDict[int, tuple[Sequence[Endpoint], _T]] = OrderedDict()

    def __call__(self, endpoints: Sequence[Endpoint]) -> _T:
        found = self._found.get(id(endpoints))
        if found is None:
            found = (endpoints, self._compute(endpoints))
            if len(self._found) >= MOST_LISTS:
                self._found.popitem(last=False)
            self._found[id(endpoints)] = found
        return found[1]

    def known(self) -> list[_T]:
        """Return the results for all lists that are remembered."""
        return [found for _, found in self._found.values()]

    def forget(self) -> None:
        """Compute anew what no longer follows from the endpoints alone."""
        self._found.clear()


@dataclass(slots=True)
class _Table:
    places: Sequence[int]
    rows: Rows
    used: float  # seconds


class Places:
    """Endpoints -> their places in the tables of what was learned.

    Places go by the endpoint's name: an engine that comes back, under another holder's number, is
    still as fast as it was. A place whose endpoint was not among the candidates for a long time is
    given to the next new one, so that the tables do not grow with engines that come and go.
    """

    def __init__(self, grow: Callable[[int], None], forget: Callable[[int], None]) -> None:
        """`grow` is told the number of places, `forget` of a place that another endpoint takes."""
        self._grow = grow
        self._forget = forget
        self._names: list[str] = []  # by place
        self._place: dict[str, int] = {}  # by name
        self._seen: list[float] = []  # by place: when it last was a candidate
        self._tables = PerEndpoint(self._looked_up)
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._names)

    def rows(self, endpoints: Sequence[Endpoint], now: float) -> Rows:
        """Return the places of these, in order. Cheap for a list that was seen before; it must not
        change."""
        self._now = now
        table = self._tables(endpoints)
        table.used = now
        return table.rows

    def place(self, endpoint: Endpoint) -> int:
        """Return the place of an endpoint that was among candidates."""
        return self._place[endpoint.name]

    def names(self) -> dict[str, int]:
        """Return name -> place, of all that are known."""
        return self._place

    def _looked_up(self, endpoints: Sequence[Endpoint]) -> _Table:
        now = self._now
        for table in self._tables.known():
            for place in table.places:
                self._seen[place] = max(self._seen[place], table.used)
        names = {endpoint.name for endpoint in endpoints}
        free = [
            place
            for place, name in enumerate(self._names)
            if now - self._seen[place] > FORGET_SECONDS and name not in names
        ]
        places = [self._of(endpoint.name, free, now) for endpoint in endpoints]
        self._grow(len(self._names))
        return _Table(places, as_rows(places), now)

    def _of(self, name: str, free: list[int], now: float) -> int:
        place = self._place.get(name)
        if place is None and free:
            place = free.pop()
            del self._place[self._names[place]]
            self._forget(place)
            self._names[place] = name
        elif place is None:
            place = len(self._names)
            self._names.append(name)
            self._seen.append(now)
        self._place[name] = place
        self._seen[place] = now
        return place


def as_rows(numbers: Sequence[int]) -> Rows:
    """Return rows of columns, as a slice if they follow one another."""
    first, last = numbers[0], numbers[-1]
    if list(numbers) == list(range(first, last + 1)):
        return slice(first, last + 1)
    return np.array(numbers, np.intp)
