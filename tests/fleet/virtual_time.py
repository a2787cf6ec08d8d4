"""An event loop whose clock is not the machine's: while everybody waits, it goes on to the moment
at which somebody does not. Nothing outside of the loop can be waited for: no socket, thread or
process.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_BEGIN = 1000.0
_TURN_SECONDS = 1e-8  # no turn takes no time, or what is due in less than that would never be


class VirtualLoop(asyncio.SelectorEventLoop):
    """Seconds pass as they are waited for."""

    def __init__(self) -> None:
        self.now = _BEGIN
        super().__init__(_Waits(self.stands_still))

    def time(self) -> float:
        return self.now

    def stands_still(self, seconds: float) -> None:
        """So much time passes, and nothing is done in it."""
        self.now += seconds


class _Waits(selectors.DefaultSelector):
    """Who would wait lets the time pass instead."""

    def __init__(self, passes: Callable[[float], None]) -> None:
        super().__init__()
        self._passes = passes

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("everybody waits for what never comes")
        self._passes(_TURN_SECONDS if found or not timeout else max(timeout, _TURN_SECONDS))
        return found


def run_virtually(work: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run it in a loop of its own, to its end."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work(loop))
