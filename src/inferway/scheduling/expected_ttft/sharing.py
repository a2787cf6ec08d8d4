"""Messages by which gateways share what they learn, so that each knows what all do.

Each tells what it has sent, what has begun to answer, and how long that took; the others take it
over as if it were their own. Endpoints are told by their names, for each gateway has its own slots.
Times are seconds of one clock: of this machine, which its processes share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count
from math import sqrt
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from inferway.model import Column, Endpoint
from inferway.scheduling.expected_ttft.backlog import QueuedRequest
from inferway.scheduling.expected_ttft.known import Known, adopt, known_of
from inferway.scheduling.expected_ttft.sent_log import MOST_PLUGINS, SentLog
from inferway.scheduling.per_endpoint import EndpointSlots, PerEndpoint

if TYPE_CHECKING:
    from inferway.scheduling.expected_ttft.learning import Learning

MOST_WAITING = 100_000  # requests of others that are remembered until they begin to answer
# Between two times of a kind that an endpoint took and others are told. Learning from one takes a
# gateway 40 us, and costs follow no faster (`costs.SOLVE_SECONDS`).
TOLD_SECONDS = 0.02
OWN = -1  # this gateway's own number
RECENT_REQUESTS = 100.0  # from which it is known how many of all others have sent


class Kind(IntEnum):
    """The kind of time that was learned."""

    TTFT = 0
    TPOT = 1
    TRANSFER = 2
    ENCODE = 3


class _LearningEvent(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A message of one gateway to the others."""


class Waits(_LearningEvent, frozen=True, gc=False):
    """A request, or a leg of one, is on its way to an endpoint. See `Learning.waits`."""

    endpoint: str
    number: int  # among those of the gateway
    tokens: float
    alone_ms: float
    at: float
    work: float
    new_tokens: float
    prompt_tokens: float | None


class Begins(_LearningEvent, frozen=True, gc=False):
    """A request has begun to answer, or has gone; or will be taken for that (`is_assumed`)."""

    number: int
    at: float
    is_assumed: bool


class Took(_LearningEvent, frozen=True, gc=False):
    """The time that something took on an endpoint, and what it was made of."""

    kind: Kind
    endpoint: str
    features: Sequence[float]
    ms: float
    at: float


class Answered(_LearningEvent, frozen=True, gc=False):
    """An answer had so many tokens."""

    tokens: int


class Comes(_LearningEvent, frozen=True, gc=False):
    """The number of decode legs of a gateway's that are to come to the endpoint now."""

    endpoint: str
    legs: float


Event = Waits | Begins | Took | Answered | Comes


@dataclass(slots=True)
class Sharing:
    """Tells others of what is learned here, and takes over what they tell."""

    learning: Learning
    slots: EndpointSlots
    tell: Callable[[Event], None]
    delay_seconds: float = 0.0  # from what happens until others hear of it
    log: SentLog | None = None  # what the others on this machine have sent, before they tell
    others_share: float = 0.0  # of the last requests: those that others have sent
    _place: float = 0.0  # among all gateways, from 0 up to 1
    _turns: PerEndpoint[Column] = field(default_factory=lambda: PerEndpoint(_in_turn))
    _numbers: count[int] = field(default_factory=lambda: count(1))
    # of other gateways: (gateway, number) -> the request that waits
    _waiting: dict[tuple[int, int], QueuedRequest] = field(default_factory=dict)
    # when others were told of a time last, by kind and slot
    _told: dict[tuple[Kind, int], float] = field(default_factory=dict)
    # (gateway, endpoint) -> decode legs that are to come there
    _coming: dict[tuple[int, str], float] = field(default_factory=dict)
    # of other gateways, whose answer is assumed to begin: when, (gateway, number)
    _assumed: list[tuple[float, tuple[int, int]]] = field(default_factory=list)

    def next_number(self) -> int:
        """Return a number for a request of ours that is told of."""
        self.others_share -= self.others_share / RECENT_REQUESTS
        return next(self._numbers)

    def is_due(self, kind: Kind, slot: int, now: float) -> bool:
        """Return whether others should be told of another time of the kind; then they are."""
        if now - self._told.get((kind, slot), -TOLD_SECONDS) < TOLD_SECONDS:
            return False
        self._told[kind, slot] = now
        return True

    def hear(self, who: int, event: Event) -> None:
        """Take over what another gateway, whose number is `who`, has told."""
        learning = self.learning
        match event:
            case Waits():
                if self.log is not None:
                    self.log.heard(who, event.number)
                self.others_share += (1.0 - self.others_share) / RECENT_REQUESTS
                # nobody tells that they have begun once they were taken for it
                while self._assumed and self._assumed[0][0] <= event.at:
                    self._waiting.pop(heappop(self._assumed)[1], None)
                if len(self._waiting) < MOST_WAITING:
                    slot = self.slots.slot_of(event.endpoint, event.at)
                    waiting = QueuedRequest(slot, event.tokens, event.alone_ms)
                    self._waiting[who, event.number] = waiting
                    learning.add(
                        waiting, event.at, event.work, event.new_tokens, event.prompt_tokens
                    )
            case Begins():
                begun = self._waiting.pop((who, event.number), None)
                if begun is not None and event.is_assumed:
                    learning.backlog.assume_begun_at(begun, event.at)
                    self._waiting[who, event.number] = begun
                    heappush(self._assumed, (event.at, (who, event.number)))
                elif begun is not None:
                    learning.backlog.begun(begun, event.at)
            case Took():
                slot = self.slots.slot_of(event.endpoint, event.at)
                learning.learn(event.kind, slot, event.features, event.ms, event.at)
            case Answered():
                learning.marginal_cost.answered(event.tokens)
            case Comes():
                slot = self.slots.slot_of(event.endpoint, learning.now)  # columns may grow
                key = (who, event.endpoint)
                learning.coming[slot] += event.legs - self._coming.get(key, 0.0)
                self._coming[key] = event.legs

    def comes(self, slot: int, by: float) -> None:
        """Tell that so many decode legs more of ours are to come there."""
        key = OWN, self.slots.name(slot)
        self._coming[key] = max(self._coming.get(key, 0.0) + by, 0.0)
        self.tell(Comes(key[1], self._coming[key]))

    def known(self, names: Iterable[str], now: float) -> Known:
        """Return what was learned here of these endpoints."""
        return known_of(self.learning, self.slots, names, now)

    def adopt(self, known: Known, now: float) -> None:
        """Take over what another gateway has learned, and this one does not know yet. It is
        sound."""
        adopt(self.learning, self.slots, known, now)

    def stand(self, own: str, others: Collection[str]) -> None:
        """Take a place of one's own among all gateways, by their names, whenever others come or
        go."""
        self._place = sum(other < own for other in others) / (len(others) + 1)

    def unheard_ms(self, endpoints: Sequence[Endpoint], now: float, cost: Column) -> Column:
        """Return the milliseconds by which each endpoint may cost more than is known here: others
        have sent something there that we have not heard of yet, or do so because they have not
        heard of us, and in any time they send as much as the engines that they keep busy work off
        in it. That is spread over the endpoints that are the best but for as much, by their `cost`:
        over n of them it scatters by the square root of n less. Each gateway has others that it
        would rather leave to others."""
        rows = self.slots.rows(endpoints, now)
        busy = float(np.add.reduce(self.learning.marginal_cost.busy(rows, now)))
        left: Column = self._turns(endpoints) + self._place
        left %= 1.0
        most = 2 * self.delay_seconds * 1000 * self.others_share * busy
        as_good = int(np.count_nonzero(cost <= cost.min() + most))
        left *= most / sqrt(as_good)
        return left

    def gone(self, who: int, now: float) -> None:
        """Forget what of a gateway waits that has ended: its requests have ended with it."""
        if self.log is not None:
            self.log.gone(who)
        for key in [key for key in self._waiting if key[0] == who]:
            self.learning.backlog.begun(self._waiting.pop(key), now)
        for coming in [key for key in self._coming if key[0] == who]:
            slot = self.slots.slot_of(coming[1], now)
            self.learning.coming[slot] -= self._coming.pop(coming)


def open_logs(sharing: Sequence[Sharing], memory: NDArray[np.float64], own: int) -> None:
    """Have the plugins of a process write what they send where others on this machine read it, and
    read what those write. `sharing`: of each plugin, in an order that all have; `memory` and `own`
    as `SentLog` takes them."""
    for number, each in enumerate(sharing[:MOST_PLUGINS]):
        each.log = SentLog(memory, own, number)


def _in_turn(endpoints: Sequence[Endpoint]) -> Column:
    """Return numbers from 0 up to 1, the same for these endpoints wherever they stand. Names that
    follow one another need not have numbers that do."""
    hashes = np.array(
        [xxh3_64_intdigest(endpoint.name.encode()) for endpoint in endpoints], np.uint64
    )
    turns: Column = hashes.argsort().argsort() / len(endpoints)
    return turns
