"""CPU time that a test may compare with a limit: whatever machine it runs on, and however busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from inferway_bench.machine import take_yardstick

YARDSTICK_US = 2200.0  # of the idle machine that limits are measured on


def slowness() -> float:
    """How many times as long as on that machine something takes here and now."""
    return max(take_yardstick() for _ in range(3)) / YARDSTICK_US


def seconds_of(call: Callable[[], object], *errors: type[Exception]) -> float:
    """What `call` would take of a thread of that machine, until it returns or raises one of
    `errors`."""
    before, began = slowness(), time.thread_time()
    with suppress(*errors):
        call()
    return (time.thread_time() - began) / max(before, slowness())
