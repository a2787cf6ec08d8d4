"""What is on its way to each engine and has not begun to answer: the work that a new request finds
ahead of itself.

Engines compute prompts one after another (vLLM: in the order they came, in chunks). So when an
answer begins, the work before it is done, and what is left is known anew; between two such
moments the first of those that wait is assumed to progress, no further than to its end. If it
should have begun long ago and has not, the engine is slower than we believe, or hangs: as long as
it has been late by now, so long it is expected to be late still.

A place is an engine's column.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np

from inferway.model import Column


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request that has not begun to answer, as far as we know."""

    place: int
    tokens: float  # of its prompt, that must be computed; more, if each costs more
    alone_ms: float  # its time to the first token, if nothing has to be done before it


@dataclass(slots=True)
class Backlog:
    """Column i is place i's."""

    tokens: Column = field(default_factory=lambda: np.zeros(0))  # of all that wait
    requests: Column = field(default_factory=lambda: np.zeros(0))
    since_ms: Column = field(default_factory=lambda: np.zeros(0))  # when the first's turn came
    first_tokens: Column = field(default_factory=lambda: np.zeros(0))  # of that one; 0: none waits
    first_alone_ms: Column = field(default_factory=lambda: np.zeros(0))  # infinite: none waits
    # in the order they came
    _queues: list[OrderedDict[QueuedRequest, None]] = field(default_factory=list)
    # Of those whose answer comes in one piece nobody sees the beginning: it is assumed.
    _unseen: list[tuple[float, int, QueuedRequest]] = field(default_factory=list)
    _tie: count[int] = field(default_factory=count)

    def grow(self, places: int) -> None:
        """Room for so many."""
        missing = np.zeros(places - len(self._queues))
        for name in ("tokens", "requests", "since_ms", "first_tokens"):
            setattr(self, name, np.concatenate([getattr(self, name), missing]))
        self.first_alone_ms = np.concatenate([self.first_alone_ms, missing + np.inf])
        self._queues += [OrderedDict() for _ in missing]

    def add(self, waiting: QueuedRequest, now: float) -> None:
        place, queue = waiting.place, self._queues[waiting.place]
        queue[waiting] = None
        self.tokens[place] += waiting.tokens
        self.requests[place] += 1
        if len(queue) == 1:
            self._first(place, now)

    def assume_begun_at(self, waiting: QueuedRequest, then: float) -> None:
        """Nobody will tell when its answer begins."""
        heappush(self._unseen, (then, next(self._tie), waiting))

    def begun(self, waiting: QueuedRequest, now: float) -> bool:
        """It answers, or has gone. False if that was known."""
        place, queue = waiting.place, self._queues[waiting.place]
        if waiting not in queue:
            return False
        was_first = next(iter(queue)) is waiting
        del queue[waiting]
        self.tokens[place] -= waiting.tokens
        self.requests[place] -= 1
        if was_first:
            self._first(place, now)
        return True

    def advance(self, now: float) -> None:
        """By now, what was assumed to begin has begun."""
        while self._unseen and self._unseen[0][0] <= now:
            then, _, waiting = heappop(self._unseen)
            self.begun(waiting, then)

    def _first(self, place: int, now: float) -> None:
        """Another is at the head of the queue, or it has got the engine for itself."""
        self.since_ms[place] = now * 1000
        first = next(iter(self._queues[place]), None)
        if first is None:
            self.tokens[place] = self.first_tokens[place] = 0.0  # sums of floats drift
            self.first_alone_ms[place] = np.inf
        else:
            self.first_tokens[place], self.first_alone_ms[place] = first.tokens, first.alone_ms
