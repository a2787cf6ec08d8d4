"""The room for so many answers at a time, and for callers that wait for one of them to end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress


class Room:
    """A limit on the number of unfinished answers, and the callers that wait for one to end. Any
    thread may use it. It takes no lock, because the last reference to an answer may be dropped
    within any other call."""

    def __init__(self, num_answers: int, executor: Executor) -> None:
        """`executor`: what those who have waited begin in."""
        self._free = deque([None] * num_answers)
        self._waiting: deque[Callable[[], object]] = deque()
        self._executor = executor

    def enter(self) -> bool:
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def leave(self) -> None:
        self._free.append(None)
        if self._waiting:
            self._call()

    def wait(self, begin: Callable[[], object]) -> None:
        """Call `begin` once there is room. It need not enter, and may wait again."""
        self._waiting.append(begin)
        if self._free:  # an answer has left meanwhile
            self._call()

    def _call(self) -> None:
        with suppress(RuntimeError):  # the engine ends
            self._executor.submit(self._let_in)

    def _let_in(self) -> None:
        while self._free:
            try:
                begin = self._waiting.popleft()
            except IndexError:
                return
            begin()
