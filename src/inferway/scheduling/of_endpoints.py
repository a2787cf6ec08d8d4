"""What follows from the endpoints alone is computed once for each list of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from inferway.model import Endpoint

MOST_LISTS = 64  # remembered: one for each model, and some old ones

_T = TypeVar("_T")


class OfEndpoints(Generic[_T]):
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
            if len(self._found) >= MOST_LISTS:
                self._found.popitem(last=False)
            found = self._found[id(endpoints)] = (endpoints, self._compute(endpoints))
        return found[1]

    def known(self) -> list[_T]:
        """Return the results for all lists that are remembered."""
        return [found for _, found in self._found.values()]

    def forget(self) -> None:
        """Compute anew what no longer follows from the endpoints alone."""
        self._found.clear()
