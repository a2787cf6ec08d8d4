"""The cost of a request for all others, in milliseconds of theirs.

It keeps the engine busy for w ms, u of them its prompt's tokens; V ms of work wait there already.

waiting    Who comes before the engine has worked off what is there waits longer for it. With r
           requests a millisecond, and the engine busy a share b of its time, the busy spell lasts
           V / (1 - b), and those who come in it wait w longer, those in what it is lengthened by
           half that on average: r w (V + w / 2) / (1 - b).
storing    The new blocks push out as many old ones. Those would have been used again with the
           probability that a prompt's tokens were cached lately, h, and would have cost about as
           much to compute: h u, times how much sooner this engine's cache is full of new text than
           the others' (new tokens there, of the mean).
answers    Each of the n answers that the engine is writing stands still for w ms in all, which is
           w / m for each token of a mean answer of m; and is a running request's cost a slower:
           n (w / m + a).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp

import numpy as np

from inferway.model import Column, Rows
from inferway.scheduling.expected_ttft.known import KnownLoad, KnownMeans

RATE_SECONDS = 20.0  # time constant of rates
BUSIEST = 0.9  # nothing is believed to be busier
NEW_REQUESTS = 200.0  # so many requests' new tokens are compared
MEAN_REQUESTS = 500.0  # time constant of the fleet's means, in requests
FIRST_ANSWER_TOKENS = 200.0
FIRST_CACHED_SHARE = 0.5
FIRST_NEW_TOKENS = 500.0

SCALE_SECONDS = 20 * RATE_SECONDS
SCALE_NEWEST = 1e30

_HALF = np.array(0.5)  # numpy takes half as long to read it as to read a float


@dataclass(slots=True)
class MarginalCost:
    """Column i is slot i's."""

    answer_tokens: float = FIRST_ANSWER_TOKENS
    cached_share: float = FIRST_CACHED_SHARE
    new_tokens: float = FIRST_NEW_TOKENS  # of a mean request
    _requests: Column = field(default_factory=lambda: np.zeros(0))
    _work: Column = field(default_factory=lambda: np.zeros(0))  # ms
    _new: Column = field(default_factory=lambda: np.zeros(0))  # tokens
    # Columns fade as a whole, so what is added grows instead, and they are scaled down at times.
    _at: float = 0.0  # the first two, and the next, are as of then
    _answers: float = 0.0  # that are asked for
    _newest: float = 1.0  # what a new token counts by now

    def grow(self, slots: int) -> None:
        """Have room for so many slots."""
        missing = np.zeros(slots - len(self._new))
        self._requests = np.concatenate([self._requests, missing])
        self._work = np.concatenate([self._work, missing])
        self._new = np.concatenate([self._new, missing])

    def forget(self, slot: int) -> None:
        """Forget a slot that another engine takes."""
        for column in (self._requests, self._work, self._new):
            column[slot] = 0.0

    def cost(
        self,
        rows: Rows,
        now: float,
        *,
        work: Column,
        tokens: Column,
        backlog: Column,
        batch: Column,
        slowed: Column,
    ) -> Column:
        """Return the cost of a request that would go there now. `work`, `tokens`, `backlog`: w, u,
        V; `batch`, `slowed`: n, n a. All in the order of `rows`."""
        self._scale(now)
        ms = RATE_SECONDS * 1000 * exp((now - self._at) / RATE_SECONDS)
        each: Column = work * _HALF
        each += backlog
        each *= self._requests[rows]
        each /= ms - np.minimum(self._work[rows], BUSIEST * ms)
        each += batch * (1.0 / self.answer_tokens)
        each *= work
        new = self._new[rows]
        total = float(np.add.reduce(new))
        if total > 0:
            each += tokens * new * (self.cached_share * len(new) / total)
        each += slowed
        return each

    def busy(self, rows: Rows, now: float) -> Column:
        """Return the share of its time that each is busy with prompts, as of late."""
        self._scale(now)
        ms = RATE_SECONDS * 1000 * exp((now - self._at) / RATE_SECONDS)
        share: Column = np.minimum(self._work[rows] / ms, BUSIEST)
        return share

    def answer_tokens_each(self, now: float) -> float:
        """Return the tokens of answers that are asked for in a millisecond, as of late, divided by
        the slots that there are."""
        self._scale(now)
        ms = RATE_SECONDS * 1000 * exp((now - self._at) / RATE_SECONDS)
        return self._answers * self.answer_tokens / ms / max(len(self._work), 1)

    def sent(self, slot: int, now: float, *, work: float, new_tokens: float, tokens: float) -> None:
        """Count a request of so many tokens that is on its way there."""
        self._newest /= 1.0 - 1.0 / NEW_REQUESTS
        self._scale(now)
        self._answers += exp((now - self._at) / RATE_SECONDS)
        self.moved(slot, now, work=work, new_tokens=new_tokens)
        self.new_tokens += (new_tokens - self.new_tokens) / MEAN_REQUESTS
        self.cached_share += (1.0 - new_tokens / tokens - self.cached_share) / MEAN_REQUESTS

    def moved(self, slot: int, now: float, *, work: float, new_tokens: float) -> None:
        """Count a decode leg on its way there, of a request whose prefill leg has been counted."""
        self._scale(now)
        newest = exp((now - self._at) / RATE_SECONDS)
        self._requests[slot] += newest
        self._work[slot] += work * newest
        self._new[slot] += new_tokens * self._newest

    def answered(self, tokens: int) -> None:
        """Count an answer of so many tokens."""
        self.answer_tokens += (tokens - self.answer_tokens) / MEAN_REQUESTS

    # what another gateway is told, and takes over

    def known(self, slot: int, now: float) -> KnownLoad:
        """Return what was sent there of late, as of now."""
        fade = exp((self._at - now) / RATE_SECONDS)
        return KnownLoad(
            self._requests.item(slot) * fade,
            self._work.item(slot) * fade,
            self._new.item(slot) / self._newest,
        )

    def known_means(self, now: float) -> KnownMeans:
        """Return the means, and how many answers were asked for of late, as of now."""
        answers = self._answers * exp((self._at - now) / RATE_SECONDS)
        return KnownMeans(self.answer_tokens, self.cached_share, self.new_tokens, answers)

    def adopt(self, slot: int, told: KnownLoad, now: float) -> None:
        """Take over what others have sent there; of what was told of before, nothing counts
        twice."""
        self._scale(now)
        newest = exp((now - self._at) / RATE_SECONDS)
        for column, value in (
            (self._requests, told.requests * newest),
            (self._work, told.work * newest),
            (self._new, told.new_tokens * self._newest),
        ):
            column[slot] = max(column.item(slot), value)

    def adopt_means(self, told: KnownMeans, now: float) -> None:
        """Take over the means that others have found."""
        self._scale(now)
        self.answer_tokens = told.answer_tokens
        self.cached_share = told.cached_share
        self.new_tokens = told.new_tokens
        asked = told.answers * exp((now - self._at) / RATE_SECONDS)
        self._answers = max(self._answers, asked)

    def _scale(self, now: float) -> None:
        """Lest numbers become too big."""
        if now - self._at > SCALE_SECONDS:
            fade = exp((self._at - now) / RATE_SECONDS)
            self._requests *= fade
            self._work *= fade
            self._answers *= fade
            self._at = now
        if self._newest > SCALE_NEWEST:
            self._new /= self._newest
            self._newest = 1.0
