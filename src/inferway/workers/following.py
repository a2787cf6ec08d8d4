"""A follower's side: follows the event streams that the hub names, and tells the hub what they
change in the index, which is the hub's and the workers'."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from prometheus_client import ProcessCollector

from inferway.fleet.engine import Engine
from inferway.fleet.orphan_resolution import OrphanResolver
from inferway.fleet.subscriber import EventSubscriber, IndexElsewhere
from inferway.fleet.subscribing import Subscribing
from inferway.kv.events.dialect_finder import SEEDS
from inferway.kv.events.event import Batch
from inferway.kv.index.protocol import Op
from inferway.model import HolderId
from inferway.tasks import Tasks
from inferway.telemetry.publisher import publish_events
from inferway.workers.follower_messages import (
    BeginFollowing,
    CountNoCopies,
    DialectTold,
    FactsTold,
    FollowedTold,
    FollowerMessage,
    FollowNoMore,
    FollowStream,
    Heard,
    Resync,
)
from inferway.workers.messages import (
    AskNumbers,
    Numbers,
    Ping,
    PromptsOffered,
    Publish,
    Ready,
    Suspect,
    Wanted,
)
from inferway.workers.numbers import told as numbers_told
from inferway.workers.reports import offer

TELL_SECONDS = 1.0  # between two tellings of figures

log = logging.getLogger("inferway")


class Following:
    """`heard` gets what the hub says; `ended` is set when the process shall end. `close` at the
    end."""

    def __init__(self, send: Callable[[FollowerMessage], None]) -> None:
        self.ended = asyncio.Event()
        self._send = send
        self._engines: list[Engine] = []
        self._by_name: dict[str, Engine] = {}
        self._streams: dict[int, tuple[Engine, EventSubscriber]] = {}
        self._told: dict[int, bytes] = {}  # what was told last, by the stream's number
        self._encoder = msgspec.msgpack.Encoder()
        self._orphans = OrphanResolver(
            self._engines,
            seeds=[*SEEDS, *filter(None, [os.environ.get("PYTHONHASHSEED")])],
            on_moved=lambda engine: send(Suspect(engine.name)),
        )
        self._tasks = Tasks(log, "streams are no longer followed, by a fault of the gateway")
        self._orders: asyncio.Queue[FollowStream | FollowNoMore] = asyncio.Queue()
        self._does: dict[type[Any], Callable[[Any], None]] = {
            BeginFollowing: self._begin,
            FollowStream: self._orders.put_nowait,
            FollowNoMore: self._orders.put_nowait,
            FactsTold: self._facts,
            Resync: self._resync,
            CountNoCopies: partial(self._of_stream, lambda stream: stream.count_no_copies()),
            PromptsOffered: partial(offer, self._orphans),
            Ping: send,
            AskNumbers: self._numbers,
        }

    def heard(self, message: FollowerMessage) -> None:
        self._does[type(message)](message)

    async def close(self) -> None:
        await self._tasks.close()
        await self._orphans.close()
        await asyncio.gather(*[stream.close() for _, stream in self._streams.values()])

    def _begin(self, told: BeginFollowing) -> None:
        on_batch = self._publish if told.publishes else None
        self._subscribing = Subscribing(None, on_batch)
        self._orphans.start()
        self._tasks.spawn(self._obey())
        self._tasks.spawn(self._tell_figures())
        self._send(Ready())

    # streams

    async def _obey(self) -> None:
        while True:
            order = await self._orders.get()
            if isinstance(order, FollowStream):
                self._follow(order)
            else:
                await self._follow_no_more(order.number)

    def _follow(self, told: FollowStream) -> None:
        engine = self._by_name.get(told.settings.label)
        if engine is None:
            engine = Engine(told.settings, told.settings.authorization())
            self._by_name[engine.name] = engine
            self._engines.append(engine)
        engine.facts = told.facts
        number = told.number
        index = IndexElsewhere(partial(self._apply, number))
        endpoint = replace(told.endpoint, headers=tuple(told.endpoint.headers))
        stream = self._subscribing.subscriber(engine, told.source, endpoint, index)
        if not told.counts_copies:
            stream.count_no_copies()
        engine.subscribers.append(stream)
        self._streams[number] = engine, stream
        stream.start(on_state=partial(self._tell, number))

    async def _follow_no_more(self, number: int) -> None:
        engine, stream = self._streams[number]
        await stream.close()
        del self._streams[number]
        self._told.pop(number, None)
        engine.subscribers.remove(stream)
        if not engine.subscribers:
            self._engines.remove(engine)
            del self._by_name[engine.name]
        await stream.give_back()

    def _of_stream(
        self, do: Callable[[EventSubscriber], None], told: Resync | CountNoCopies
    ) -> None:
        if told.number in self._streams:
            do(self._streams[told.number][1])

    def _resync(self, told: Resync) -> None:
        restarted, resync = EventSubscriber.restarted, EventSubscriber.resync
        self._of_stream(restarted if told.has_restarted else resync, told)

    def _facts(self, told: FactsTold) -> None:
        if told.number in self._streams:
            self._streams[told.number][0].facts = told.facts

    # what the hub is told

    def _apply(self, number: int, ops: list[Op]) -> None:
        if ops and number in self._streams:
            self._send(Heard(number, ops, self._streams[number][1].last_seq))

    def _tell(self, number: int) -> None:
        """How the stream is, unless that has been told."""
        if number not in self._streams:
            return
        engine, stream = self._streams[number]
        finder = engine.dialects.get(stream.source.rank)
        dialect = None if finder is None else DialectTold(finder.state, finder.name, finder.finding)
        told = FollowedTold(
            *(number, stream.state, stream.may_report, stream.cut_seen),
            *(stream.figures, dialect),
        )
        encoded = self._encoder.encode(told)  # as it is now: the counters go on
        if self._told.get(number) != encoded:
            self._told[number] = encoded
            self._send(told)

    def _tell_all(self) -> None:
        for number in self._streams:
            self._tell(number)

    async def _tell_figures(self) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            self._tell_all()
            self._send(Wanted(self._orphans.wanted))

    def _publish(self, engine: Engine, _: HolderId, batch: Batch) -> None:
        publish_events(self._publish_message, engine, batch)

    def _publish_message(self, topic: str, message: dict[str, Any]) -> None:
        self._send(Publish(topic, self._encoder.encode(message)))

    def _numbers(self, asked: AskNumbers) -> None:
        self._tell_all()  # whoever asks for numbers shows those of streams as well
        families = ProcessCollector(registry=None).collect()
        self._send(Numbers(asked.number, numbers_told(families)))
