"""Coroutines run at once, as far as they go without waiting: most decisions never wait, and a task
costs more than they do."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any


def run_until_suspended(coroutine: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None] | None:
    """Runs it to its first wait; returns what is left of it, to be awaited, or None. Raises what it
    does."""
    try:
        waited = coroutine.send(None)
    except StopIteration:
        return None
    return _resumed(coroutine, waited)


async def _resumed(coroutine: Coroutine[Any, Any, None], waited: object) -> None:
    await resumed(coroutine, waited)


@types.coroutine
def resumed(coroutine: Coroutine[Any, Any, None], waited: object) -> Generator[object, Any, None]:
    """Goes on with a coroutine that already waits for `waited`."""
    while True:
        try:
            yield waited
            break
        except BaseException as error:  # a cancellation; the coroutine decides what comes of it
            try:
                waited = coroutine.throw(error)
            except StopIteration:
                return
    yield from coroutine
