"""A follower before a hub, in one process: between them are a real socket pair, what the follower's
streams write, and the hub's side of each stream. A follower may be killed; the next one knows
nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Any

from tests.chaos.world import Line, World

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.event_source import EventSource
from inferway.fleet.stream_figures import no_figures
from inferway.fleet.subscriber import IndexElsewhere
from inferway.kv.events.stream import StreamState
from inferway.kv.index.protocol import Index, Op
from inferway.model import Endpoint
from inferway.workers.elsewhere import StreamElsewhere
from inferway.workers.follower_messages import FollowedTold, FollowerMessage, Heard
from inferway.workers.link import Link, pair
from inferway.workers.messages import Ping

KILLED = 0.02  # share of turns
MOST_HEARINGS = 6  # of what was told, in a turn
SECONDS = 60.0  # in which all must have been heard


class Follower:
    """One that runs, and the hub's streams that are its own."""

    def __init__(self) -> None:
        self.streams: dict[int, StreamElsewhere] = {}
        self.heard = 0  # pings
        self.link = Link(_nothing_heard, _nothing, FollowerMessage)
        self._hub = Link(self._hear, _nothing, FollowerMessage)
        self.is_open = False

    async def open(self) -> None:
        if not self.is_open:
            self.is_open = True
            ours, theirs = pair()
            await self._hub.open(ours)
            await self.link.open(theirs)

    def killed(self) -> None:
        self._hub.close()
        self.link.close()
        for stream in self.streams.values():
            stream.lost()

    async def has_been_heard(self) -> None:
        before = self.heard
        self.link.send(Ping())
        while self.heard == before:
            await asyncio.sleep(0)

    def _hear(self, message: FollowerMessage) -> None:
        match message:
            case Heard():
                self.streams[message.number].heard(message)
            case FollowedTold():
                self.streams[message.number].told(message)
            case Ping():
                self.heard += 1


class Followers:
    """The follower that there is, one after the other, of all lines of a world."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._follower = Follower()
        self._numbers = 0
        self._of: dict[int, tuple[Index, StreamElsewhere, int]] = {}  # by holder

    def index_of(self, line: Line, index: Index) -> IndexElsewhere:
        """What the line writes from now on: a new gateway, if the index is another one, or a new
        follower."""
        known = self._of.get(line.holder)
        stream = known[1] if known is not None and known[0] is index else _stream(line, index)
        self._numbers += 1
        number = self._numbers
        self._of[line.holder] = index, stream, number
        self._follower.streams[number] = stream
        return IndexElsewhere(partial(self._apply, self._follower, number))

    def state_of(self, line: Line) -> StreamState:
        return self._of[line.holder][1].state

    async def turn(self, world: World) -> None:
        """The hub hears a part of what was told; the follower may be killed."""
        await self._follower.open()
        if self._rng.random() < KILLED and self._may_die(world):
            self._kill(world)
            await self._follower.open()
        for _ in range(self._rng.randint(0, MOST_HEARINGS)):
            await asyncio.sleep(0)

    async def settled(self, world: World) -> None:
        """Return when the hub has heard all, and how true each picture is."""
        await self._follower.open()
        for line in world.lines:
            self._tell(line)
        async with asyncio.timeout(SECONDS):
            await self._follower.has_been_heard()

    def close(self) -> None:
        self._follower.killed()

    def _may_die(self, world: World) -> bool:
        """As gateways may: who keeps nothing may take reports for copies."""
        return not world.troubles.report

    def _kill(self, world: World) -> None:
        self._follower.killed()
        self._follower = Follower()
        for line in world.lines:
            line.follow_without_state()

    def _apply(self, follower: Follower, number: int, ops: list[Op]) -> None:
        if ops:
            follower.link.send(Heard(number, ops, None))

    def _tell(self, line: Line) -> None:
        number = self._of[line.holder][2]
        told = FollowedTold(
            *(number, line.follower.state, False, line.blocks.block_size_seen),
            *(no_figures(), None),
        )
        self._follower.link.send(told)


class _Nowhere:
    """Nothing is told to the followers here (`workers.elsewhere.Follows`)."""

    def begin(self, stream: StreamElsewhere) -> None: ...
    def end(self, stream: StreamElsewhere) -> None: ...
    def send(self, stream: StreamElsewhere, message: FollowerMessage) -> None: ...


def _stream(line: Line, index: Index) -> StreamElsewhere:
    engine = Engine(EngineSettings(url=f"http://engine{line.holder}"), ())
    source = EventSource(0, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    endpoint = Endpoint(engine.name, engine.url, line.holder)
    return StreamElsewhere(engine, source, endpoint, index, _Nowhere())


def _nothing() -> None:
    """Nobody waits for it."""


def _nothing_heard(message: Any) -> None:
    raise AssertionError(f"nobody says {message}")
