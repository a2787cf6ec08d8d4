"""Values that plugins remember of endpoints: those that follow from a list of them alone, computed
once for each list, and their slots in the tables of what was learned."""

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
    slots: Sequence[int]
    rows: Rows
    used: float  # seconds


class EndpointSlots:
    """Endpoints -> their slots in the tables of what was learned.

    Slots go by the endpoint's name: an engine that comes back, under another holder's number, is
    still as fast as it was. A slot whose endpoint was not among the candidates for a long time is
    given to the next new one, so that the tables do not grow with engines that come and go.
    """

    def __init__(self, grow: Callable[[int], None], forget: Callable[[int], None]) -> None:
        """`grow` is told the number of slots, `forget` of a slot that another endpoint takes."""
        self._grow = grow
        self._forget = forget
        self._names: list[str] = []  # by slot
        self._slot: dict[str, int] = {}  # by name
        self._seen: list[float] = []  # by slot: when it last was a candidate
        self._tables = PerEndpoint(self._looked_up)
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._names)

    def rows(self, endpoints: Sequence[Endpoint], now: float) -> Rows:
        """Return the slots of these, in order. Cheap for a list that was seen before; it must not
        change."""
        self._now = now
        table = self._tables(endpoints)
        table.used = now
        return table.rows

    def slot(self, endpoint: Endpoint) -> int:
        """Return the slot of an endpoint that was among candidates."""
        return self._slot[endpoint.name]

    def name(self, slot: int) -> str:
        """Return the name of the endpoint that has the slot."""
        return self._names[slot]

    def slot_of(self, name: str, now: float) -> int:
        """Return the slot of the endpoint of that name, which may not have been among candidates
        here; then it gets one."""
        slot = self._slot.get(name)
        if slot is None:
            slot = self._of(name, [], now)
            self._grow(len(self._names))
        return slot

    def names(self) -> dict[str, int]:
        """Return name -> slot, of all that are known."""
        return self._slot

    def _looked_up(self, endpoints: Sequence[Endpoint]) -> _Table:
        now = self._now
        for table in self._tables.known():
            for slot in table.slots:
                self._seen[slot] = max(self._seen[slot], table.used)
        names = {endpoint.name for endpoint in endpoints}
        free = [
            slot
            for slot, name in enumerate(self._names)
            if now - self._seen[slot] > FORGET_SECONDS and name not in names
        ]
        slots = [self._of(endpoint.name, free, now) for endpoint in endpoints]
        self._grow(len(self._names))
        return _Table(slots, as_rows(slots), now)

    def _of(self, name: str, free: list[int], now: float) -> int:
        slot = self._slot.get(name)
        if slot is None and free:
            slot = free.pop()
            del self._slot[self._names[slot]]
            self._forget(slot)
            self._names[slot] = name
        elif slot is None:
            slot = len(self._names)
            self._names.append(name)
            self._seen.append(now)
        self._slot[name] = slot
        self._seen[slot] = now
        return slot


def as_rows(numbers: Sequence[int]) -> Rows:
    """Return rows of columns, as a slice if they follow one another."""
    first, last = numbers[0], numbers[-1]
    if list(numbers) == list(range(first, last + 1)):
        return slice(first, last + 1)
    return np.array(numbers, np.intp)
