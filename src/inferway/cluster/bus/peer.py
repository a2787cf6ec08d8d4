"""Another gateway: what it has told, what of that counts, and what ends with it. No I/O; time is
given.

What it claims is kept apart from what others claim. It can make engines look busier than they are,
as a gateway that really sends so much does, and no less busy; when it is silent, all of it is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from msgspec.structs import replace

from inferway.cluster.bus.inbox import Inbox
from inferway.cluster.bus.peer_messages import VERSION, KnownTold, PeerMessage, Shared
from inferway.cluster.bus.sound import read, sender_of
from inferway.errors import PeerMessageError
from inferway.fleet.elsewhere import Claims
from inferway.fleet.table import EndpointTable
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.sharing import (
    Answered,
    Begins,
    Comes,
    Event,
    Took,
    Waits,
)

SILENT_SECONDS = 0.7  # then it has gone
MOST_WAITING = 16_384  # requests of a peer that wait
# What is heard of a peer in a second: some ten times what a busy gateway tells.
MOST_MESSAGES = 1000.0
MOST_MESSAGE_BYTES = 8 * 1024 * 1024.0
FIRST_NUMBER = 1_000_000  # of peers, for the inbox: below are the workers beside us

# What is counted of each peer.
COUNTS = {
    "messages": "Messages of the peer that were taken over.",
    "bytes": "Bytes of the messages of the peer that were taken over.",
    "lost": "Messages of the peer that have not come, as its numbers tell.",
    "late": "Messages of the peer that came twice, or after a later one, and do not count.",
    "unknown": "Things that the peer has told of engines which are not known here.",
}


@dataclass(slots=True)
class Peer:
    """`address`: how it is known here, whatever it says of itself. `numbers`: for the inbox; each
    life of a gateway has its own."""

    address: str
    table: EndpointTable
    inbox: Inbox
    numbers: Iterator[int] = field(default_factory=lambda: count(FIRST_NUMBER))
    name: str = ""
    counts: Counter[str] = field(default_factory=Counter)  # by the names of `COUNTS`
    refused: Counter[str] = field(default_factory=Counter)  # messages, or things in them, by reason
    last: float = 0.0  # when any message came
    heard: float | None = None  # when the last message came that counts; None: none of this life
    sender: int = -1  # what it has drawn at its start
    fault: PeerMessageError | None = None  # the first of the last message
    _who: int = 0
    _last: int = 0  # number of the last message
    _claims: Claims = field(init=False)
    # by plugin: number -> whether it is assumed to begin some time
    _waiting: list[dict[int, bool]] = field(default_factory=list)
    _has_all: bool = False  # nothing was lost since all that is so was told
    # what it may say yet: as much at once as in a second
    _messages: float = MOST_MESSAGES
    _bytes: float = MOST_MESSAGE_BYTES

    def __post_init__(self) -> None:
        self._claims = Claims(self.table)

    @property
    def is_there(self) -> bool:
        return self.heard is not None

    @property
    def requests(self) -> float:
        """The number of requests that the peer has with engines."""
        return self._claims.requests

    @property
    def num_waiting(self) -> int:
        """The number of the peer's requests whose answers have not begun."""
        return max(map(len, self._waiting), default=0)

    def hear(self, payload: bytes, now: float) -> bool:
        """Take over a message without the things in it that cannot be true; `fault` names the first
        of these. Returns whether a new life of the gateway has begun with the message. Raises
        PeerMessageError, with nothing taken over."""
        self.fault = None
        self._note_come(len(payload), now)
        sender = sender_of(payload)
        message, faults = read(payload)
        is_new = sender != self.sender or not self.is_there
        if not is_new and message.number <= self._last:
            self.counts["late"] += 1
            return False
        lost = 0 if is_new else message.number - self._last - 1
        if is_new or lost:
            self._begin(now)
        self._has_all = self._has_all or message.begins
        self.sender, self._last, self.heard = sender, message.number, now
        self.name = message.name
        self.counts.update(messages=1, bytes=len(payload), lost=lost)
        self.fault = faults[0] if faults else None
        self.refused.update(each.reason for each in faults)
        self._take_over(message, now)
        return is_new

    def _note_come(self, num_bytes: int, now: float) -> None:
        """Raises PeerMessageError if it says too much."""
        passed, self.last = max(now - self.last, 0.0), now
        self._messages = min(self._messages + passed * MOST_MESSAGES, MOST_MESSAGES)
        self._bytes = min(self._bytes + passed * MOST_MESSAGE_BYTES, MOST_MESSAGE_BYTES)
        if self._messages < 1.0 or self._bytes < num_bytes:
            raise PeerMessageError(
                f"more than {MOST_MESSAGES:.0f} messages, or {MOST_MESSAGE_BYTES:.0f} bytes, a"
                " second",
                reason="too-much",
            )
        self._messages -= 1.0
        self._bytes -= num_bytes

    def is_silent(self, now: float) -> bool:
        """Return whether it was there, and is silent for too long."""
        return self.heard is not None and now - self.heard > SILENT_SECONDS

    def state(self, now: float) -> str:
        """Return what operators see of it."""
        if self.is_there:
            return "heard"
        return "refused" if now - self.last <= SILENT_SECONDS else "silent"

    def gone(self, now: float) -> None:
        """Forget all that it has told."""
        if self.is_there:
            self.heard, self._has_all = None, False
            self._claims.clear()
            self._waiting.clear()
            self.inbox.gone(self._who, now)

    def _begin(self, now: float) -> None:
        """Forget all, for it is another one, or something of it was lost: what it has told may be
        over. What it tells counts again from where it tells all that is so."""
        self.gone(now)
        self._who = next(self.numbers)
        self._waiting = [{} for _ in self.inbox.sharing]

    def _take_over(self, message: PeerMessage, now: float) -> None:
        num_plugins = len(self._waiting)
        shared: list[Shared] = []
        known: list[KnownTold] = []
        for each in message.shared:
            event = self._counting(each, now) if each.plugin < num_plugins else None
            if event is not None:
                shared.append(Shared(each.plugin, event))
        for counted in message.counts if self._has_all else ():
            if self._knows(counted.endpoint):
                self._claims.set(counted)
            else:  # it may have been known
                self._claims.drop(counted.endpoint)
        for told in message.known:
            if told.plugin < num_plugins:
                there = set(filter(self._knows, told.known.endpoints))
                known.append(KnownTold(told.plugin, _only(told.known, there)))
        if shared or known:
            true = PeerMessage(VERSION, 0, "", shared=shared, known=known)  # and nothing else
            self.inbox.take(self._who, true, now)

    def _counting(self, told: Shared, now: float) -> Event | None:
        """Return the event with a time of our clock in place of its age; None if it does not
        count."""
        event, waiting = told.event, self._waiting[told.plugin]
        if isinstance(event, Waits | Took | Comes) and not self._knows(event.endpoint):
            return None
        if isinstance(event, Waits | Begins | Comes) and not self._has_all:
            return None
        if isinstance(event, Waits):
            if event.number in waiting or len(waiting) >= MOST_WAITING:
                return None
            waiting[event.number] = False
        elif isinstance(event, Begins) and not _begins(event, waiting):
            return None
        return event if isinstance(event, Answered | Comes) else replace(event, at=now - event.at)

    def _knows(self, endpoint: str) -> bool:
        if self.table.holder_of(endpoint) is not None:
            return True
        self.counts["unknown"] += 1
        return False


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


def _only(known: Known, names: set[str]) -> Known:
    """Return what of it is about these engines."""
    costs = [
        each and replace(each, engines={n: e for n, e in each.engines.items() if n in names})
        for each in known.costs
    ]
    return Known(costs, {n: e for n, e in known.loads.items() if n in names}, known.means)
