"""`inferway serve --followers M`: the processes beside the hub that follow the engines' event
streams, each all streams of some engines.

They start with the first stream that is to be followed. An engine stays with its follower; a new
one goes to the follower that has the fewest streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from inferway.fleet.engine import Engine
from inferway.fleet.event_source import EventSource
from inferway.kv.index.protocol import Index
from inferway.model import Endpoint
from inferway.tasks import Tasks
from inferway.workers.elsewhere import StreamElsewhere
from inferway.workers.follower_messages import (
    BeginFollowing,
    FollowedTold,
    FollowerMessage,
    FollowNoMore,
    Heard,
)
from inferway.workers.link import Link
from inferway.workers.messages import Ping, PromptsOffered, Wanted
from inferway.workers.seat import Seat, SeatProgram

END_SECONDS = 5.0  # that a follower has at the end, to close its journals
MOST_REMEMBERED = 10_000  # engines, with those that have gone

log = logging.getLogger("inferway")


class Followers:
    """`subscribe` for each stream. `does` is what to do with messages that are not about a stream,
    by their class."""

    def __init__(
        self,
        number: int,
        index: Index,
        begin: Callable[[], BeginFollowing],
        files: Callable[[], Sequence[int]],
    ) -> None:
        """`files`: that followers inherit (`cli.follower`)."""
        self.does: dict[type[Any], Callable[[Seat, Any], None]] = {}
        self.on_ended: Callable[[Seat], None] | None = None  # one of them has ended
        self._index = index
        self._begin = begin
        program = SeatProgram("follower", "inferway.cli.follower", files, FollowerMessage)
        self.seats = [
            Seat(place, program, self._tell_all, self._heard, self._ended)
            for place in range(1, number + 1)
        ]
        self._tasks = Tasks(log, "a follower is no longer looked after, by a fault of the gateway")
        self._have_begun = False
        self._numbers = count(1)
        self._streams: dict[Seat, list[StreamElsewhere]] = {seat: [] for seat in self.seats}
        self._by_number: dict[int, StreamElsewhere] = {}
        self._seat_of: dict[str, Seat] = {}  # engine -> whose it is, also once it has gone
        self._want: set[Seat] = set()  # prompts

    @property
    def wanted(self) -> bool:
        """Whether one of them wants prompts for events without a known parent block."""
        return bool(self._want)

    def subscribe(self, engine: Engine, source: EventSource, endpoint: Endpoint) -> StreamElsewhere:
        """As `fleet.Subscribe`."""
        return StreamElsewhere(engine, source, endpoint, self._index, self)

    async def started(self) -> None:
        """Return when all are ready that have been started. Raises ConfigError if one cannot be."""
        if self._have_begun:
            await asyncio.gather(*[seat.started() for seat in self.seats])

    async def close(self) -> None:
        """Have them end, and wait for that."""
        for seat in self.seats:
            seat.leave()
        await asyncio.gather(*[seat.left(END_SECONDS) for seat in self.seats])
        await self._tasks.close()

    def look(self) -> None:
        """Once a second: see that they answer, and tell them what engines have told."""
        for seat in self.seats if self._have_begun else ():
            seat.send(Ping())
            seat.look()
            for stream in self._streams[seat]:
                stream.tell_facts()

    def offer(self, told: PromptsOffered) -> None:
        """Pass prompts on to those that want them."""
        for seat in self._want:
            seat.send(told)

    # elsewhere.FollowsStreams

    def begin(self, stream: StreamElsewhere) -> None:
        seat = self._seat_for(stream.engine.name)
        self._streams[seat].append(stream)
        if not self._have_begun:
            self._have_begun = True
            for each in self.seats:
                self._tasks.spawn(each.keep())
        elif seat.hears:
            self._order(seat, stream)

    def end(self, stream: StreamElsewhere) -> None:
        seat = self._seat_of.get(stream.engine.name)
        if seat is not None and stream in self._streams[seat]:
            self._streams[seat].remove(stream)
            if self._by_number.pop(stream.number, None) is not None:
                seat.send(FollowNoMore(stream.number))

    def send(self, stream: StreamElsewhere, message: FollowerMessage) -> None:
        if stream.number:
            self._seat_of[stream.engine.name].send(message)

    def _seat_for(self, engine: str) -> Seat:
        seat = self._seat_of.get(engine)
        if seat is None:
            if len(self._seat_of) >= MOST_REMEMBERED:
                there = {each.engine.name for some in self._streams.values() for each in some}
                self._seat_of = {name: at for name, at in self._seat_of.items() if name in there}
            seat = min(self.seats, key=lambda each: len(self._streams[each]))
            self._seat_of[engine] = seat
        return seat

    def _order(self, seat: Seat, stream: StreamElsewhere) -> None:
        number = next(self._numbers)
        self._by_number[number] = stream
        seat.send(stream.order(number))

    # seats

    async def _tell_all(self, seat: Seat, link: Link) -> None:
        link.send(self._begin())
        seat.hears = True
        for stream in self._streams[seat]:
            self._order(seat, stream)

    def _heard(self, seat: Seat, message: FollowerMessage) -> None:
        match message:
            case Heard():
                if (stream := self._by_number.get(message.number)) is not None:
                    stream.heard(message)
            case FollowedTold():
                if (stream := self._by_number.get(message.number)) is not None:
                    stream.told(message)
            case Wanted():
                (self._want.add if message.is_wanted else self._want.discard)(seat)
            case Ping():
                pass
            case _:
                self.does[type(message)](seat, message)

    def _ended(self, seat: Seat) -> None:
        self._want.discard(seat)
        for stream in self._streams[seat]:
            self._by_number.pop(stream.number, None)
            stream.lost()
        if self.on_ended is not None:
            self.on_ended(seat)
