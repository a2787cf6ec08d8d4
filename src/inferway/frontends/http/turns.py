"""Turns of the loop, of connections that have more to read or to answer than fits in one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

CALLS_A_TURN = 16  # of connections; what each does is bounded by itself


class Turns:
    """In each turn of the loop few of those who have asked are called, whatever their number, in
    the order in which they have: a client may have thousands of connections."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._due = False

    @property
    def are_short(self) -> bool:
        """Whether more wait than the next turn has place for."""
        return len(self._waiting) > CALLS_A_TURN

    def ask(self, call: Callable[[], object]) -> None:
        """Calls it in a turn to come."""
        self._waiting.append(call)
        self._begin()

    def _begin(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        self._due = False
        try:
            for _ in range(min(CALLS_A_TURN, len(self._waiting))):
                self._waiting.popleft()()
        finally:  # a fault of one costs the others their place in this turn
            self._begin()
