"""The outbox makes the messages by which this gateway tells the others what it does. No I/O; time
is given.

Events, and counts that have changed, go out with the next message. Once a second all that is so is
told again: whoever has missed a message forgets all of this gateway, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, TypeVar

from msgspec.structs import replace

from inferway.cluster.bus.peer_messages import VERSION, KnownTold, PeerMessage, Shared
from inferway.cluster.bus.sound import MOST_BYTES, written
from inferway.fleet.elsewhere import OwnCounts
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.sharing import Answered, Begins, Comes, Event, Waits

EVENTS_EACH = 256  # in a message
COUNTS_EACH = 512
KNOWN_EACH = 16  # endpoints
PIECES_EACH = 2  # of what is told again, with one message of changes
KNOWN_A_ROUND = 64  # endpoints that each round tells what was learned of
_PLACE = 40  # bits of a request's number below the place of its worker

_T = TypeVar("_T")


@dataclass(slots=True)
class Outbox:
    """`tell` it what happens, and send what `messages` yields. `known`: what a plugin has learned
    of some endpoints."""

    sender: int  # drawn at each start
    name: str
    counts: OwnCounts
    num_plugins: int
    known: Callable[[int, Sequence[str], float], Known]
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _events: list[Shared] = field(default_factory=list)
    # by plugin and number: requests that wait, and those of them that will be taken for begun
    _waits: dict[tuple[int, int], Waits] = field(default_factory=dict)
    _assumed: dict[tuple[int, int], Begins] = field(default_factory=dict)
    # by plugin and endpoint: the decode legs that are to come there, by the worker's place
    _coming: dict[tuple[int, str], dict[int, float]] = field(default_factory=dict)
    _round: Iterator[dict[str, Any]] | None = None  # what is still to be told again
    _to_tell: Sequence[str] | None = None  # endpoints of a round that is to begin
    _taught: dict[str, None] = field(default_factory=dict)  # told of lately, the longest ago first
    _now: float = 0.0

    def tell(self, plugin: int, event: Event, place: int = 0) -> None:
        """Take what a plugin tells, with times of this gateway's clock. `place`: of the worker,
        whose requests have numbers of their own."""
        if isinstance(event, Waits | Begins):
            if place:
                event = replace(event, number=event.number | place << _PLACE)
            key = (plugin, event.number)
            if isinstance(event, Waits):
                self._waits[key] = event
            elif key not in self._waits:
                return  # it was taken for begun
            elif event.is_assumed:
                self._assumed[key] = event
            else:
                del self._waits[key]
                self._assumed.pop(key, None)
        elif isinstance(event, Comes):
            legs = self._coming.setdefault((plugin, event.endpoint), {})
            legs[place] = event.legs
            event = Comes(event.endpoint, sum(legs.values()))
            if not event.legs:
                del self._coming[plugin, event.endpoint]
        self._events.append(Shared(plugin, event))

    def ended(self, place: int, now: float) -> None:
        """Tell that a worker has ended, and its requests with it."""
        for plugin, number in [key for key in self._waits if key[1] >> _PLACE == place]:
            self.tell(plugin, Begins(number, now, is_assumed=False))
        for plugin, name in [key for key, legs in self._coming.items() if legs.get(place)]:
            self.tell(plugin, Comes(name, 0.0), place)

    def messages(self, now: float) -> Iterator[bytes]:
        """Yield what has changed since the last time, and a piece or two of all that is so."""
        self._now, names, self._to_tell = now, self._to_tell, None
        begins = names is not None
        if names is not None:
            self._end_assumed(now)
            self._round = self._all_that_is_so(names)
        events, self._events = self._events, []
        counts = self.counts.all() if begins else self.counts.changed()
        is_first = True
        while is_first or events or counts:
            yield from self._written(
                begins=begins and is_first,
                shared=[_aged(each, now) for each in events[:EVENTS_EACH]],
                counts=counts[:COUNTS_EACH],
            )
            events, counts, is_first = events[EVENTS_EACH:], counts[COUNTS_EACH:], False
        if self._round is not None:
            pieces = [*islice(self._round, PIECES_EACH)]
            self._round = self._round if len(pieces) == PIECES_EACH else None
            for piece in pieces:
                yield from self._written(**piece)

    @property
    def has_more(self) -> bool:
        """Something is still to be told again."""
        return self._round is not None or self._to_tell is not None

    def begin_round(self, endpoints: Iterable[str], *, whole: bool) -> None:
        """Tell all that is so, with the next messages. `whole`: all that was learned, too, of all
        these endpoints; else of some, in turns. Nothing happens while a round is under way."""
        if not self.has_more:
            self._to_tell = self._to_teach(list(endpoints), whole=whole)

    def _all_that_is_so(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rest of a round behind its counts. Each piece is made when its turn has come:
        it tells what is so then."""
        for keys in _cut(list(self._waits), EVENTS_EACH):
            there = [Shared(key[0], self._waits[key]) for key in keys if key in self._waits]
            there += [Shared(key[0], self._assumed[key]) for key in keys if key in self._assumed]
            yield {"shared": [_aged(each, self._now) for each in there]}
        for places in _cut(list(self._coming), EVENTS_EACH):
            found = [(*key, self._coming[key]) for key in places if key in self._coming]
            yield {"shared": [Shared(n, Comes(at, sum(legs.values()))) for n, at, legs in found]}
        for plugin in range(self.num_plugins):
            for some in _cut(names, KNOWN_EACH):
                yield {"known": [KnownTold(plugin, self.known(plugin, some, self._now))]}

    def _end_assumed(self, now: float) -> None:
        """Take out those that nobody will tell of when they have begun."""
        for plugin, number in [key for key, each in self._assumed.items() if each.at <= now]:
            self.tell(plugin, Begins(number, now, is_assumed=False))

    def _to_teach(self, endpoints: Sequence[str], *, whole: bool) -> Sequence[str]:
        """Return those that were told of the longest ago."""
        there = set(endpoints)
        taught = {name: None for name in self._taught if name in there}
        names = [*(name for name in endpoints if name not in taught), *taught]
        chosen = names if whole else names[:KNOWN_A_ROUND]
        self._taught = dict.fromkeys([*names[len(chosen) :], *chosen])
        return chosen

    def _written(self, **parts: Any) -> Iterator[bytes]:
        message = PeerMessage(VERSION, next(self._numbers), self.name, **parts)
        payload = written(self.sender, message)
        if len(payload) <= MOST_BYTES:  # else nobody would take it, and its number shows as lost
            yield payload


def _aged(shared: Shared, now: float) -> Shared:
    """Return the event with how long ago it was in place of when."""
    event = shared.event
    if isinstance(event, Answered | Comes):
        return shared
    return Shared(shared.plugin, replace(event, at=now - event.at))


def _cut(items: Sequence[_T], size: int) -> list[Sequence[_T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
