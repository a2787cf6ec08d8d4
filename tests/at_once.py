"""What coroutines return, without an event loop for each: `asyncio.run` takes ten times as long as
most of what tests ask a thousand times."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Of a coroutine that gives way to others, but waits for nothing. Raises RuntimeError if it
    does wait."""
    try:
        while (awaited := work.send(None)) is None:
            pass
    except StopIteration as end:
        found: T = end.value
        return found
    work.close()
    raise RuntimeError(f"it waits for {awaited!r}")


def on_one_loop(work: Coroutine[Any, Any, T]) -> T:
    """Of a coroutine that may wait, but leaves nothing behind on its loop."""
    return _loop().run_until_complete(work)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop
