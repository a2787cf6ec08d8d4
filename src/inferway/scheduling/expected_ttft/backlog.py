"""Requests that are on their way to each engine and have not begun to answer: the work that a new
request finds ahead of itself.

Engines compute prompts one after another (vLLM: in the order they came, in chunks). So when an
answer begins, the work before it is done, and what is left is known anew; between two such
moments the first of those that wait is assumed to progress, no further than to its end. If it
should have begun long ago and has not, the engine is slower than we believe, or hangs: as long as
it has been late by now, so long it is expected to be late still.

Then requests that did not come through us, other gateways' above all: what of them waits.

An engine tells how many it has, now and then. Those that it says wait, wait; but vLLM counts a
request as running from the first chunk of its prompt on, and the rest of that prompt is work ahead
as well. So a request that is new since the last scrape counts as a prompt that is just begun, as
long as a mean one of ours, which the engine works off from then on. An engine that tells how many
have not begun to answer (`Candidates.unbegun`) is believed: so many, but for ours, are ahead, each
as long as a mean one.

A slot is an engine's column.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np

from inferway.model import Candidates, Column, HolderId, Rows


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request that has not begun to answer, as far as we know."""

    slot: int
    tokens: float  # of its prompt, that must be computed; more, if each costs more
    alone_ms: float  # its time to the first token, if nothing has to be done before it
    number: int = 0  # that others know it by
    holder: HolderId = -1  # of the endpoint


@dataclass(slots=True)
class Backlog:
    """Column i is slot i's."""

    tokens: Column = field(default_factory=lambda: np.zeros(0))  # of all that wait
    requests: Column = field(default_factory=lambda: np.zeros(0))
    since_ms: Column = field(default_factory=lambda: np.zeros(0))  # when the first's turn came
    first_tokens: Column = field(default_factory=lambda: np.zeros(0))  # of that one; 0: none waits
    first_alone_ms: Column = field(default_factory=lambda: np.zeros(0))  # infinite: none waits
    # in the order they came
    _queues: list[OrderedDict[QueuedRequest, None]] = field(default_factory=list)
    # The beginning of an answer that comes in one piece is not seen: it is assumed.
    _unseen: list[tuple[float, int, QueuedRequest]] = field(default_factory=list)
    _tie: count[int] = field(default_factory=count)

    def grow(self, slots: int) -> None:
        """Have room for so many slots."""
        missing = np.zeros(slots - len(self._queues))
        for name in ("tokens", "requests", "since_ms", "first_tokens"):
            setattr(self, name, np.concatenate([getattr(self, name), missing]))
        self.first_alone_ms = np.concatenate([self.first_alone_ms, missing + np.inf])
        self._queues += [OrderedDict() for _ in missing]

    def add(self, waiting: QueuedRequest, now: float) -> None:
        slot, queue = waiting.slot, self._queues[waiting.slot]
        queue[waiting] = None
        self.tokens[slot] += waiting.tokens
        self.requests[slot] += 1
        if len(queue) == 1:
            self._first(slot, now)

    def assume_begun_at(self, waiting: QueuedRequest, then: float) -> None:
        """Take the request's answer for begun then, because its beginning will not be seen."""
        heappush(self._unseen, (then, next(self._tie), waiting))

    def begun(self, waiting: QueuedRequest, now: float) -> bool:
        """Take out a request that answers, or has gone. Returns False if that was known."""
        slot, queue = waiting.slot, self._queues[waiting.slot]
        if waiting not in queue:
            return False
        was_first = next(iter(queue)) is waiting
        del queue[waiting]
        self.tokens[slot] -= waiting.tokens
        self.requests[slot] -= 1
        if was_first:
            self._first(slot, now)
        if self.tokens[slot] < self.first_tokens[slot]:  # sums of floats drift
            self.tokens[slot] = self.first_tokens[slot]
        return True

    def advance(self, now: float) -> None:
        """Take out what was assumed to begin by now."""
        while self._unseen and self._unseen[0][0] <= now:
            then, _, waiting = heappop(self._unseen)
            self.begun(waiting, then)

    def _first(self, slot: int, now: float) -> None:
        """Another is at the head of the queue, or it has got the engine for itself."""
        self.since_ms[slot] = now * 1000
        first = next(iter(self._queues[slot]), None)
        if first is None:
            self.tokens[slot] = self.first_tokens[slot] = 0.0  # exactly
            self.first_alone_ms[slot] = np.inf
        else:
            self.first_tokens[slot], self.first_alone_ms[slot] = first.tokens, first.alone_ms


@dataclass(slots=True)
class ExternalLoad:
    """Column i is slot i's."""

    # Requests, by the last scrape; NaN: nothing was seen yet, so nothing is new.
    _seen: Column = field(default_factory=lambda: np.zeros(0))
    _tokens: Column = field(default_factory=lambda: np.zeros(0))  # of begun prompts, left then
    _at: Column = field(default_factory=lambda: np.zeros(0))  # seconds: when it was
    _none: bool = False  # no slot has any

    def grow(self, slots: int) -> None:
        """Have room for so many slots."""
        missing = np.zeros(slots - len(self._seen))
        self._seen = np.concatenate([self._seen, missing + np.nan])
        self._tokens = np.concatenate([self._tokens, missing])
        self._at = np.concatenate([self._at, missing])
        self._none = self._none and not len(missing)

    def forget(self, slot: int) -> None:
        """Forget a slot that another engine takes."""
        self._seen[slot], self._tokens[slot], self._none = np.nan, 0.0, False

    def ahead(
        self,
        candidates: Candidates,
        rows: Rows,
        cost_ms: Column,
        mean_tokens: float,
        ours: Column,
    ) -> tuple[Column, Column] | None:
        """Return (requests that wait, tokens that do or are begun); None if there are none.
        `cost_ms`: of a token that waits; `ours`: of our requests, those that have not begun to
        answer."""
        others, now = candidates.others, candidates.now
        if not np.count_nonzero(others):
            if not self._none:
                self._seen[rows] = self._tokens[rows] = 0.0
                self._none = not self._seen.any()
            return None
        self._none = False
        awaiting_first_token = candidates.awaiting_first_token - ours
        is_told = candidates.awaiting_first_token >= 0.0
        np.minimum(
            np.maximum(awaiting_first_token, 0.0, out=awaiting_first_token),
            others,
            out=awaiting_first_token,
        )
        if is_told.all():
            return awaiting_first_token, awaiting_first_token * mean_tokens
        left = self._tokens[rows] - (now - self._at[rows]) * 1000 / cost_ms
        np.maximum(left, 0.0, out=left)
        seen = self._seen[rows]
        if (others != seen).any():  # some have been scraped
            left += np.fmax(others - seen, 0.0) * mean_tokens
            np.minimum(left, others * mean_tokens, out=left)
            self._seen[rows], self._tokens[rows], self._at[rows] = others, left, now
        waiting = candidates.waiting
        queued = others * waiting / np.maximum(waiting + candidates.running, 1.0)
        tokens = np.maximum(queued * mean_tokens, left)
        return np.where(is_told, awaiting_first_token, queued), np.where(
            is_told, awaiting_first_token * mean_tokens, tokens
        )
