"""A clock for programs that count instructions: import it before what is counted.

`time.monotonic` stands still from `stand_still` on, and goes on by `pass_time` alone, so that work
that is done so often a second is done as often on a busy machine as on an idle one. An event loop
of asyncio goes by it as well; uvloop's, and waiting threads, do not.
"""

from __future__ import annotations

import asyncio
import time

_real = time.monotonic
_now: float | None = None


def _monotonic() -> float:
    return _real() if _now is None else _now


time.monotonic = _monotonic


def stand_still() -> None:
    """Let no time pass from here on."""
    global _now
    _now = _monotonic()


def pass_time(seconds: float) -> None:
    """Let so many seconds pass, once it stands still."""
    global _now
    assert _now is not None
    _now += seconds


async def pass_a_second() -> None:
    """Let a second pass, and what was to be done until then be done."""
    pass_time(1)
    for _ in range(100):
        await asyncio.sleep(0)
