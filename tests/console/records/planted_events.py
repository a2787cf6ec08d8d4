"""The events of an engine whose misses are planted, heard by the gateway's own subscriber. Sockets
alone are played: what is published may be lost, doubled, late or corrupt on its way, and the link
may break. `settle` brings what has not come, as a silence does, which makes the gateway ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import msgspec
from tests.chaos.faults import corrupt

from inferway.fleet.event_source import EventSource
from inferway.fleet.subscriber import EventSubscriber, Subscription
from inferway.kv.events.adapters.vllm import normalise
from inferway.kv.events.event import Event
from inferway.kv.events.stream import Replay
from inferway.kv.index.protocol import Index

TROUBLES = ("lost", "doubled", "late", "corrupt", "link")


class PlantedStream(EventSubscriber):
    """What one engine publishes, and what is known of it. `trouble`: the share of messages that
    do not come as they should."""

    def __init__(
        self,
        holder: int,
        block_size: int,
        index: Index,
        clock: Callable[[], float],
        random: Random,
        trouble: float,
    ) -> None:
        source = EventSource(0, "planted", "planted")
        super().__init__(Subscription(source, holder, block_size, index), clock=clock)
        self.rechecks = 0
        self.drops = 0
        self._random = random
        self._trouble = trouble
        self._published: list[bytes] = []  # by this life of the engine
        self._late: list[tuple[int, bytes]] = []
        self._wanted: Replay | None = None
        self._is_up = False
        self._is_cut_off = False

    async def publish(self, event: Event) -> None:
        """The engine says this in a batch of its own."""
        payload = msgspec.msgpack.encode([0.0, [normalise(event)], 0])
        number = len(self._published)
        self._published.append(payload)
        if not self._is_up:
            return
        is_troubled = self._random.random() < self._trouble
        match self._random.choice(TROUBLES) if is_troubled else "":
            case "lost":
                pass
            case "doubled":
                await self._live([(number, payload)] * 2)
            case "late":
                self._late.append((number, payload))
            case "corrupt":
                await self._live([(number, corrupt(payload, self._random))])
            case "link":
                self._break()
            case _:
                await self._live([(number, payload)])

    def cut_off(self) -> None:
        """From here on nothing comes."""
        self._break()
        self._is_cut_off = True

    def restart(self) -> None:
        """A new process takes its place, which counts its batches from 0."""
        self._break()
        self._published.clear()

    async def settle(self) -> None:
        """Hear all that was published until now."""
        if self._is_cut_off:
            return
        if self._is_up:
            self._random.shuffle(self._late)
            await self._live(self._late)
            self._late.clear()
            self._feed(self.follower.recheck)
        else:
            self._is_up = True
            self._feed(self.follower.resume)
        while self._wanted is not None:
            await self._answer(self._wanted)

    def drops_last_block(self) -> None:
        self.drops += 1

    def recheck(self) -> None:
        """It is compared with the engine by the next `settle`, as always."""
        self.rechecks += 1

    def _warn(self, reason: str, message: str) -> None:
        """What was spoilt here on purpose is worth no line in the log."""

    # the sockets

    @property
    def _is_open(self) -> bool:
        return True

    def _open(self) -> None:
        pass

    def _ask_for(self, replay: Replay) -> None:
        self._wanted = replay

    def _break(self) -> None:
        """What a broken link has not brought, it does not bring any more."""
        self.follower.lost()
        self._is_up = False
        self._late.clear()

    async def _live(self, messages: Sequence[tuple[int, bytes]]) -> None:
        for number, payload in messages:
            self._feed(partial(self.follower.live, number, payload))
            await self._idle.wait()

    async def _answer(self, wanted: Replay) -> None:
        """Answer a replay, until another one is wanted instead."""
        for number in range(wanted.from_seq, len(self._published)):
            self._feed(partial(self.follower.replayed, number, self._published[number]))
            await self._idle.wait()
            if self._wanted is not wanted:
                return
        self._wanted = None
        self._feed(partial(self.follower.replay_ended, complete=True))
        await self._idle.wait()
