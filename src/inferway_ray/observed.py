"""Observers of when the first piece of a replica's answer comes.

The answer is read in the caller's own thread and loop, past the router. Its object is given a class
that is the one it had, and notes the first item on its way; whatever else Ray does with it stays as
it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import msgspec

from inferway.model import Headers


class AnswerHead(msgspec.Struct, frozen=True):
    """The first item of an answer that an ingress of ours passes on: the engine's own head."""

    status: int
    headers: Headers = ()


# Is told the status of an answer, when the first piece behind its head is there.
OnFirst = Callable[[int], None]


def observe(result: Any, on_first: OnFirst) -> None:
    """Have `on_first` called, in whatever thread reads the answer, with its first piece. An object
    that cannot be given another class is left alone: then nobody learns from this answer."""
    kind: Any = type(result)
    try:
        result.__class__ = _observed(kind)
    except TypeError:
        return
    result._inferway_first = on_first
    result._inferway_status = 200


@cache
def _observed(of: Hashable) -> Any:
    """The class with its own name, so that who looks at it sees what was there."""
    kind: Any = of

    def note(self: Any, item: object) -> None:
        if isinstance(item, AnswerHead):
            self._inferway_status = item.status
        elif (on_first := self._inferway_first) is not None:
            self._inferway_first = None
            on_first(self._inferway_status)

    async def __anext__(self: Any) -> Any:
        item = await kind.__anext__(self)
        note(self, item)
        return item

    def __next__(self: Any) -> Any:
        item = kind.__next__(self)
        note(self, item)
        return item

    return type(kind.__name__, (kind,), {"__anext__": __anext__, "__next__": __next__})
