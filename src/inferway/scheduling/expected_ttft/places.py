"""Endpoints -> their places in the tables of what was learned.

Places go by the endpoint's name: an engine that comes back, under another holder's number, is still
as fast as it was. A place whose endpoint was not among the candidates for a long time is given to
the next new one, so that the tables do not grow with engines that come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferway.model import Endpoint

FORGET_SECONDS = 3600.0
MOST_TABLES = 64  # lists of endpoints that are remembered: one for each model, some old ones

# A slice, where it is one, gives views.
Rows = slice | NDArray[np.intp]


@dataclass(slots=True)
class _Table:
    endpoints: Sequence[Endpoint]
    places: Sequence[int]
    rows: Rows
    used: float  # seconds


@dataclass(slots=True)
class Places:
    """`grow` is told the number of places, `forget` of a place that another endpoint takes."""

    grow: Callable[[int], None]
    forget: Callable[[int], None]
    _names: list[str] = field(default_factory=list)  # by place
    _place: dict[str, int] = field(default_factory=dict)  # by name
    _seen: list[float] = field(default_factory=list)  # by place: when it last was a candidate
    _tables: dict[int, _Table] = field(default_factory=dict)  # by id of the list

    def __len__(self) -> int:
        return len(self._names)

    def rows(self, endpoints: Sequence[Endpoint], now: float) -> Rows:
        """Return the places of these, in order. Cheap for a list that was seen before; it must not
        change."""
        table = self._tables.get(id(endpoints))
        if table is None or table.endpoints is not endpoints:
            table = self._looked_up(endpoints, now)
        table.used = now
        return table.rows

    def place(self, endpoint: Endpoint) -> int:
        """Return the place of an endpoint that was among candidates."""
        return self._place[endpoint.name]

    def names(self) -> dict[str, int]:
        """Return name -> place, of all that are known."""
        return self._place

    def _looked_up(self, endpoints: Sequence[Endpoint], now: float) -> _Table:
        for table in self._tables.values():
            for place in table.places:
                self._seen[place] = max(self._seen[place], table.used)
        if len(self._tables) >= MOST_TABLES:
            self._tables.clear()
        names = {endpoint.name for endpoint in endpoints}
        free = [
            place
            for place, name in enumerate(self._names)
            if now - self._seen[place] > FORGET_SECONDS and name not in names
        ]
        places = [self._of(endpoint.name, free, now) for endpoint in endpoints]
        self.grow(len(self._names))
        table = self._tables[id(endpoints)] = _Table(endpoints, places, _as_rows(places), now)
        return table

    def _of(self, name: str, free: list[int], now: float) -> int:
        place = self._place.get(name)
        if place is None and free:
            place = free.pop()
            del self._place[self._names[place]]
            self.forget(place)
            self._names[place] = name
        elif place is None:
            place = len(self._names)
            self._names.append(name)
            self._seen.append(now)
        self._place[name] = place
        self._seen[place] = now
        return place


def _as_rows(places: Sequence[int]) -> Rows:
    if list(places) == list(range(places[0], places[0] + len(places))):
        return slice(places[0], places[0] + len(places))
    return np.array(places, np.intp)
