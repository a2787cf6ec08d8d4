"""Waiting for what must become true; never for a time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 120  # the threads of four engines leave little of two cores
POLL_SECONDS = 0.02


def wait_until(
    condition: Callable[[], T | None],
    what: str,
    describe: Callable[[], object] = lambda: "",
    seconds: float = SECONDS,
) -> T:
    """The condition's value as soon as it is true. TimeoutError says `what` never came true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what} {describe()}")
        time.sleep(POLL_SECONDS)
    return value
