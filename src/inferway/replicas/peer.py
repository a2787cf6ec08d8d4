"""Another gateway: what it has told, what of that counts, and what ends with it. No I/O; time is
given.

What it claims is kept apart from what others claim. It can make engines look busier than they are,
as a gateway that really sends so much does, and no less busy; when it is silent, all of it is gone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from msgspec.structs import replace

from inferway.errors import PeerMessageError
from inferway.fleet.elsewhere import Claims, Count
from inferway.fleet.table import EndpointTable
from inferway.replicas.learning import Learners
from inferway.replicas.messages import (
    ComingTold,
    CountRange,
    CountTold,
    KnownTold,
    PeerMessage,
    Shared,
    WaitingRange,
    read,
    sender_of,
)
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.sharing import Answered, Begins, Comes, Event, Waits

SILENT_SECONDS = 0.7  # then it has gone
MOST_WAITING = 16_384  # requests of a peer that wait
MOST_CLAIMS = 32_768  # endpoints that a peer has something on the way to
# What is heard of a peer in a second: some ten times what a busy gateway tells.
MOST_MESSAGES = 1000.0
MOST_MESSAGE_BYTES = 8 * 1024 * 1024.0
FIRST_NUMBER = 1_000_000  # of peers, for learners: below are the workers beside us
_FORMER = 4  # lives of a peer that are not mixed up with this one

_T = TypeVar("_T")


@dataclass(slots=True)
class Allowance:
    """So much a second, and as much at once."""

    a_second: float
    left: float = field(init=False)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.a_second

    def takes(self, amount: float, now: float) -> bool:
        """Whether there is so much left, which is used then."""
        passed = max(now - self.at, 0.0)
        self.left = min(self.a_second, self.left + passed * self.a_second)
        self.at = now
        if amount > self.left:
            return False
        self.left -= amount
        return True


@dataclass(slots=True)
class PeerStats:
    """Plain integers, read when somebody scrapes."""

    messages: int = 0  # taken over
    bytes: int = 0
    lost: int = 0  # by their numbers
    late: int = 0  # or doubled: another with the same number, or a later one, came before
    unknown: int = 0  # things told of engines that are not known here
    refused: Counter[str] = field(default_factory=Counter)  # messages, or things in them

    def took(self, num_bytes: int, lost: int) -> None:
        """Count a message that was taken over; `lost`: those before it that have not come."""
        self.messages += 1
        self.bytes += num_bytes
        self.lost += lost

    def came_late(self) -> None:
        """Count a message that is not taken over, because another one has come before it."""
        self.late += 1

    def told_of_unknown(self) -> None:
        """Count a thing told of an engine that is not known here."""
        self.unknown += 1


@dataclass(slots=True)
class Peer:
    """`address`: how it is known here, whatever it says of itself. `numbers`: for learners; each
    life of a gateway has its own."""

    address: str
    table: EndpointTable
    learners: Learners
    numbers: Iterator[int] = field(default_factory=lambda: count(FIRST_NUMBER))
    name: str = ""
    stats: PeerStats = field(default_factory=PeerStats)
    heard: float | None = None  # when the last message came that counts; None: none of this life
    fault: PeerMessageError | None = (
        None  # of the last message: why its first wrong item is refused
    )
    _who: int = 0
    _sender: int = -1
    _former: deque[int] = field(default_factory=lambda: deque(maxlen=_FORMER))
    _last: int = 0  # number of the last message
    _claims: Claims = field(init=False)
    # by plugin: number -> whether it is assumed to begin some time
    _waiting: list[dict[int, bool]] = field(default_factory=list)
    _coming: dict[tuple[int, str], float] = field(default_factory=dict)
    _messages: Allowance = field(default_factory=lambda: Allowance(MOST_MESSAGES))
    _bytes: Allowance = field(default_factory=lambda: Allowance(MOST_MESSAGE_BYTES))

    def __post_init__(self) -> None:
        self._claims = Claims(self.table)

    @property
    def sender(self) -> int:
        """What it has drawn at its start."""
        return self._sender

    @property
    def is_there(self) -> bool:
        return self.heard is not None

    @property
    def requests(self) -> float:
        """How many requests it has with engines."""
        return self._claims.requests

    @property
    def num_waiting(self) -> int:
        """How many of them have not begun to answer."""
        return max(map(len, self._waiting), default=0)

    def hear(self, payload: bytes, now: float) -> bool:
        """Take over a message without the things in it that cannot be true; `fault` names the first
        of these. Returns whether a new life of the gateway has begun with the message. Raises
        PeerMessageError, with nothing taken over."""
        self.fault = None
        if not (self._messages.takes(1.0, now) and self._bytes.takes(len(payload), now)):
            raise PeerMessageError(
                f"more than {MOST_MESSAGES:g} messages, or {MOST_MESSAGE_BYTES:g} bytes, a second",
                reason="too-much",
            )
        sender = sender_of(payload)
        if sender in self._former:
            self.stats.came_late()
            return False
        message, faults = read(payload)
        is_new = sender != self._sender or not self.is_there
        if is_new:
            self._begin(sender, now)
            lost = 0
        elif message.number <= self._last:
            self.stats.came_late()
            return False
        else:
            lost = message.number - self._last - 1
        self._last, self.heard, self.name = message.number, now, message.name
        self.stats.took(len(payload), lost)
        self.fault = faults[0] if faults else None
        self.stats.refused.update(each.reason for each in faults)
        self._take_over(message, now)
        self.learners.heard(self._who)
        return is_new

    def is_silent(self, now: float) -> bool:
        """Return whether it was there, and is silent for too long."""
        return self.heard is not None and now - self.heard > SILENT_SECONDS

    def gone(self, now: float) -> None:
        """Forget all that it has told."""
        if self.is_there:
            self.heard = None
            self._claims.drop_all(self._claims.endpoints)
            self._waiting.clear()
            self._coming.clear()
            self.learners.gone(self._who, now)

    def _begin(self, sender: int, now: float) -> None:
        self.gone(now)
        if sender != self._sender and self._sender != -1:
            self._former.append(self._sender)
        self._sender, self._who = sender, next(self.numbers)
        self._waiting = [{} for _ in range(self.learners.num_plugins)]

    # what it tells

    def _take_over(self, message: PeerMessage, now: float) -> None:
        for shared in message.shared:
            self._hear(shared, now)
        for counted in message.counts:
            self._count(counted)
        for coming in message.coming:
            self._come(coming)
        for waiting in message.waiting:
            self._settle_waiting(waiting, now)
        for counts in message.count_ranges:
            self._settle_counts(counts)
        if message.all_coming is not None:
            self._settle_coming(message.all_coming)
        for known in message.known:
            self._adopt(known, now)

    def _hear(self, shared: Shared, now: float) -> None:
        plugin, event = shared.plugin, shared.event
        if plugin >= len(self._waiting):
            self.stats.told_of_unknown()
            return
        waiting = self._waiting[plugin]
        if isinstance(event, Begins):
            if not _begins(event, waiting):
                return
        elif not isinstance(event, Answered | Comes):
            if not self._knows(event.endpoint):
                return
            if isinstance(event, Waits) and not self._takes(event, waiting):
                return
        self._tell(plugin, event, now)

    def _takes(self, waits: Waits, waiting: dict[int, bool]) -> bool:
        if waits.number in waiting or len(waiting) >= MOST_WAITING:
            return False
        waiting[waits.number] = False
        return True

    def _tell(self, plugin: int, event: Event, now: float) -> None:
        """Told ages are times of this gateway's clock from here on."""
        if not isinstance(event, Answered | Comes):
            event = replace(event, at=now - event.at)
        self.learners.hear(self._who, plugin, event)

    def _knows(self, endpoint: str) -> bool:
        if self.table.holder_of(endpoint) is not None:
            return True
        self.stats.told_of_unknown()
        return False

    def _count(self, told: CountTold) -> None:
        has_room = told.endpoint in self._claims.endpoints or len(self._claims) < MOST_CLAIMS
        if has_room and self._knows(told.endpoint):
            self._claims.set(Count(told.endpoint, told.requests, told.tokens))

    def _come(self, told: ComingTold) -> None:
        key = (told.plugin, told.endpoint)
        if told.plugin >= len(self._waiting) or not self._knows(told.endpoint):
            return
        before = self._coming.pop(key, 0.0)
        if told.legs and len(self._coming) < MOST_CLAIMS:
            self._coming[key] = told.legs
        by = self._coming.get(key, 0.0) - before
        if by:
            self.learners.hear(self._who, told.plugin, Comes(told.endpoint, by))

    # what is so

    def _settle_waiting(self, told: WaitingRange, now: float) -> None:
        if told.plugin >= len(self._waiting):
            return
        waiting = self._waiting[told.plugin]
        there = {each.number for each in told.waits}
        here = [each for each in waiting if told.after < each <= told.upto]
        for number in here:
            if number not in there:
                del waiting[number]
                begins = Begins(number, 0.0, is_assumed=False)
                self._tell(told.plugin, begins, now)
        for waits in told.waits:
            self._hear(Shared(told.plugin, waits), now)
        for assumed in told.assumed:
            self._hear(Shared(told.plugin, assumed), now)

    def _settle_counts(self, told: CountRange) -> None:
        there = {each.endpoint for each in told.counts}
        self._claims.drop_all(
            endpoint
            for endpoint in self._claims.endpoints
            if _lies_in(endpoint, told.after, told.upto) and endpoint not in there
        )
        for each in told.counts:
            self._count(each)

    def _settle_coming(self, told: Sequence[ComingTold]) -> None:
        there = {(each.plugin, each.endpoint) for each in told}
        for plugin, endpoint in [key for key in self._coming if key not in there]:
            self._come(ComingTold(plugin, endpoint, 0.0))
        for each in told:
            self._come(each)

    def _adopt(self, told: KnownTold, now: float) -> None:
        if told.plugin < len(self._waiting):
            known = _of_those(told.known, filter(self._knows, told.known.endpoints))
            self.learners.adopt(told.plugin, known, now)


def _begins(begins: Begins, waiting: dict[int, bool]) -> bool:
    """Note it, unless it says nothing new."""
    is_assumed = waiting.get(begins.number)
    if is_assumed is None or (is_assumed and begins.is_assumed):
        return False
    if begins.is_assumed:
        waiting[begins.number] = True
    else:
        del waiting[begins.number]
    return True


def _lies_in(name: str, after: str, upto: str | None) -> bool:
    return name > after and (upto is None or name <= upto)


def _of_those(known: Known, names: Iterable[str]) -> Known:
    """What is told of these engines only."""
    there = set(names)
    return Known(
        [
            None if costs is None else replace(costs, engines=_only(costs.engines, there))
            for costs in known.costs
        ],
        _only(known.loads, there),
        known.means,
    )


def _only(told: dict[str, _T], names: set[str]) -> dict[str, _T]:
    return {name: each for name, each in told.items() if name in names}
