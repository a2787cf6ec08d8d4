"""What this gateway tells the others. No I/O; time is given.

Events, and counts that have changed, go out with the next message. A round tells all that is so, in
pieces that follow one another: each is a message by itself, and none of them may be missed for the
others to be true.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from inferway.fleet.elsewhere import Count, OwnCounts
from inferway.replicas.messages import (
    MOST_BYTES,
    VERSION,
    ComingTold,
    CountRange,
    CountTold,
    KnownTold,
    PeerMessage,
    Shared,
    WaitingRange,
    written,
)
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.sharing import Answered, Begins, Comes, Event, Waits

EVENTS_EACH = 512  # in a message
COUNTS_EACH = 1024
WAITING_EACH = 256
KNOWN_EACH = 16  # endpoints
PIECES_EACH = 2  # of a round, with one message of changes
KNOWN_A_ROUND = 64  # endpoints that each round tells what was learned of
MOST_COMING = 4096  # endpoints that decode legs are to come to

# What was learned of these endpoints, by the plugin of that number.
Learned = Callable[[int, Sequence[str], float], Known]

_T = TypeVar("_T")


@dataclass(slots=True)
class _Waiting:
    """A plugin's requests that wait, as others know them; numbers rise."""

    waits: dict[int, Waits] = field(default_factory=dict)
    assumed: dict[int, Begins] = field(default_factory=dict)  # of those, which will be begun when
    last: int = 0  # the highest number

    def note(self, event: Waits | Begins) -> None:
        if isinstance(event, Waits):
            self.waits[event.number] = event
            self.last = event.number
        elif event.is_assumed and event.number in self.waits:
            self.assumed[event.number] = event
        else:
            self.waits.pop(event.number, None)
            self.assumed.pop(event.number, None)

    def advance(self, now: float) -> None:
        """Take out those that nobody will tell of when they have begun."""
        for number in [number for number, each in self.assumed.items() if each.at <= now]:
            del self.assumed[number], self.waits[number]


@dataclass(slots=True)
class Outbox:
    """`tell` it what happens, and send what `messages` and `round` yield. `learned`: what is told
    of it."""

    sender: int  # drawn at each start
    name: str
    counts: OwnCounts
    num_plugins: int
    learned: Learned
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _events: list[Shared] = field(default_factory=list)
    _waiting: list[_Waiting] = field(init=False)
    _coming: dict[tuple[int, str], float] = field(default_factory=dict)
    _changed: set[tuple[int, str]] = field(default_factory=set)  # of `_coming`
    # what of the round is still to be told; each is made when its turn has come
    _round: deque[Callable[[float], dict[str, Any]]] = field(default_factory=deque)
    _taught: dict[str, None] = field(default_factory=dict)  # told of lately, the longest ago first

    def __post_init__(self) -> None:
        self._waiting = [_Waiting() for _ in range(self.num_plugins)]

    def tell(self, plugin: int, event: Event) -> None:
        """Take what a plugin tells, with times of this gateway's clock."""
        if isinstance(event, Comes):
            key = (plugin, event.endpoint)
            self._coming[key] = self._coming.get(key, 0.0) + event.by
            self._changed.add(key)
            return
        if isinstance(event, Waits | Begins):
            self._waiting[plugin].note(event)
        self._events.append(Shared(plugin, event))

    def messages(self, now: float) -> Iterator[bytes]:
        """Yield what has changed since the last time, and a piece or two of a round."""
        events, self._events = self._events, []
        counts, coming = self.counts.changed(), self._coming_changed()
        first = True
        while first or events or counts or coming:
            first = False
            yield from self._written(
                shared=[_aged(each, now) for each in events[:EVENTS_EACH]],
                counts=[CountTold(*each) for each in counts[:COUNTS_EACH]],
                coming=coming[:COUNTS_EACH],
            )
            events, counts = events[EVENTS_EACH:], counts[COUNTS_EACH:]
            coming = coming[COUNTS_EACH:]
        for _ in range(min(PIECES_EACH, len(self._round))):
            yield from self._written(**self._round.popleft()(now))

    @property
    def has_more(self) -> bool:
        """Whether something of a round is still to be told."""
        return bool(self._round)

    def begin_round(self, now: float, endpoints: Iterable[str], *, whole: bool) -> None:
        """Tell all that is so, with the next messages. `whole`: all that was learned, too, of all
        these endpoints; else of some, in turns. Nothing happens while a round is under way."""
        if self._round:
            return
        for plugin, waiting in enumerate(self._waiting):
            waiting.advance(now)
            self._round.extend(self._waiting_pieces(plugin, waiting))
        self._round.extend(self._count_pieces(self.counts.all()))
        self._round.append(lambda _: {"all_coming": self._all_coming()})
        taught = self._to_teach(list(endpoints), whole=whole)
        for plugin in range(self.num_plugins):
            for names in _cut(taught, KNOWN_EACH):
                self._round.append(self._known_piece(plugin, names))

    def _waiting_pieces(
        self, plugin: int, waiting: _Waiting
    ) -> Iterator[Callable[[float], dict[str, Any]]]:
        numbers = list(waiting.waits)
        after = 0
        for piece in _cut(numbers, WAITING_EACH) or [[]]:
            is_last = not piece or piece[-1] == numbers[-1]
            upto = waiting.last if is_last else piece[-1]
            yield self._waiting_piece(plugin, after, upto, piece)
            after = upto

    def _waiting_piece(
        self, plugin: int, after: int, upto: int, numbers: Sequence[int]
    ) -> Callable[[float], dict[str, Any]]:
        waiting = self._waiting[plugin]

        def made(now: float) -> dict[str, Any]:
            there = [number for number in numbers if number in waiting.waits]
            waits = [_ago(waiting.waits[number], now) for number in there]
            assumed = [waiting.assumed[number] for number in there if number in waiting.assumed]
            ago = [_ago(each, now) for each in assumed]
            return {"waiting": [WaitingRange(plugin, after, upto, waits, ago)]}

        return made

    def _count_pieces(self, counts: Sequence[Count]) -> Iterator[Callable[[float], dict[str, Any]]]:
        """By then the counts have changed: who is told in this piece is told of it as it is."""
        after = ""
        cut = _cut(counts, COUNTS_EACH) or [[]]
        for place, piece in enumerate(cut):
            upto = None if place == len(cut) - 1 else piece[-1].endpoint
            yield self._count_piece(after, upto)
            after = upto or ""

    def _count_piece(self, after: str, upto: str | None) -> Callable[[float], dict[str, Any]]:
        def made(_: float) -> dict[str, Any]:
            told = [
                CountTold(*each)
                for each in self.counts.all()
                if each.endpoint > after and (upto is None or each.endpoint <= upto)
            ]
            return {"count_ranges": [CountRange(after, upto, told)]}

        return made

    def _known_piece(self, plugin: int, names: Sequence[str]) -> Callable[[float], dict[str, Any]]:
        return lambda now: {"known": [KnownTold(plugin, self.learned(plugin, names, now))]}

    def _to_teach(self, endpoints: Sequence[str], *, whole: bool) -> Sequence[str]:
        """Those that were told of the longest ago."""
        there = set(endpoints)
        taught = {name: None for name in self._taught if name in there}
        new = {name: None for name in endpoints if name not in taught}
        names = [*new, *taught]
        chosen = names if whole else names[:KNOWN_A_ROUND]
        rest = names[len(chosen) :]
        self._taught = dict.fromkeys([*rest, *chosen])
        return chosen

    def _coming_changed(self) -> list[ComingTold]:
        changed, self._changed = self._changed, set()
        told = [ComingTold(*key, max(self._coming.get(key, 0.0), 0.0)) for key in changed]
        for key in changed:
            if not self._coming.get(key):
                self._coming.pop(key, None)
        return told

    def _all_coming(self) -> list[ComingTold]:
        told = [ComingTold(*key, max(legs, 0.0)) for key, legs in self._coming.items() if legs]
        return told[:MOST_COMING]

    def _written(self, **parts: Any) -> Iterator[bytes]:
        message = PeerMessage(VERSION, next(self._numbers), self.name, **parts)
        payload = written(self.sender, message)
        if len(payload) <= MOST_BYTES:  # else nobody would take it, and its number shows as lost
            yield payload


def _aged(shared: Shared, now: float) -> Shared:
    event = shared.event
    return (
        shared if isinstance(event, Answered | Comes) else Shared(shared.plugin, _ago(event, now))
    )


_Timed = TypeVar("_Timed", bound=Any)


def _ago(event: _Timed, now: float) -> _Timed:
    """The event, with how long ago it was in place of when."""
    aged: _Timed = replace(event, at=now - event.at)
    return aged


def _cut(items: Sequence[_T], size: int) -> list[Sequence[_T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
