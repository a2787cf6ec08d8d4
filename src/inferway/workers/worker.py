"""A process that answers requests. The hub tells it what to serve, and what the engines hold.

When the hub has ended, a worker goes on with what it knows for LINGER_SECONDS, and ends then: who
looks after the hub has started another one by then, with workers of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from inferway.app import Gateway
from inferway.config import ServeSettings
from inferway.errors import ConfigError
from inferway.fleet.fleet import Fleet
from inferway.fleet.shared_columns import SharedColumns
from inferway.http.reload import Apply
from inferway.indexer import FleetParts, next_turn
from inferway.kv.index.build import memory_index
from inferway.servers import Process
from inferway.tasks import Tasks
from inferway.workers.follower import HeardIndex, HubWatch
from inferway.workers.link import Link
from inferway.workers.messages import (
    AskNumbers,
    AskRecords,
    Begin,
    Commit,
    Drain,
    EnginesTold,
    FromOther,
    Full,
    HandOvers,
    Message,
    Numbers,
    Operations,
    OtherEnded,
    OutcomeTold,
    Ping,
    Prepare,
    Prepared,
    Ready,
    RecordsTold,
    RulesTold,
    Settled,
    Turn,
    Wanted,
)
from inferway.workers.numbers import told as numbers_told
from inferway.workers.peers import Peers
from inferway.workers.records import told as records_told
from inferway.workers.reports import HubOrphans, HubProber, HubPublisher
from inferway.workers.turns import HubQueue, own_places

LINGER_SECONDS = 10.0


log = logging.getLogger("inferway")


class Worker:
    """A gateway whose fleet is the hub's (`serving.Served`)."""

    def __init__(self, begin: Begin, link: Link, memory: int) -> None:
        """Raises ConfigError."""
        self.settings = begin.settings
        self._link = link
        self._tasks = Tasks(log, "new settings could not be taken, by a fault of the gateway")
        self._watch: HubWatch | None = None
        self._prepared: Apply | None = None
        self._waiting: list[Message] = []
        index = memory_index(begin.settings.index, HeardIndex)
        index.send = link.send
        self._index = index
        columns = SharedColumns(memory, begin.place)
        os.close(memory)
        parts = FleetParts(index, columns, self._watched, HubProber)
        self._orphans = HubOrphans(link.send)
        publisher = HubPublisher(link.send) if begin.publishes else None
        self.gateway = Gateway(
            begin.settings,
            picks=begin.picks,
            process=Process(parts, begin.hub, False, publisher, self._orphans),
        )
        prober = self.gateway.fleet.prober
        assert isinstance(prober, HubProber)
        prober.send, prober.fleet = link.send, self.gateway.fleet

        self.gateway.records.recorder.keeps_keys = begin.keeps_keys
        self._peers = Peers(link.send, self.gateway.learning_plugins, soon=next_turn)
        self.gateway.indexer.matcher.overlay = self._peers.overlay
        self.gateway.standing.tell = self._tell_outcome
        self._turns = HubQueue(link.send)
        self._workers = begin.num_processes - 1
        self._set_own_places(begin.settings)
        self.gateway.auth.turns = self._turns.ticket

    def _want(self, told: Wanted) -> None:
        self._orphans.wanted = told.is_wanted

    def _pinged(self, ping: Ping) -> None:
        self._link.send(ping)
        found = self.gateway.draining.all_progress()
        if found:
            self._link.send(HandOvers(found))

    def _drain(self, told: Drain) -> None:
        draining, engine = self.gateway.draining, self.gateway.fleet.engine(told.engine)
        if engine is None:
            return
        if told.seconds is None:
            self._tasks.spawn(draining.resume(engine))
        else:
            draining.drain(engine, told.seconds)

    def _records(self, asked: AskRecords) -> RecordsTold:
        gateway, now = self.gateway, time.monotonic()
        return records_told(
            *(gateway.records.recorder, asked.number, asked.since),
            traffic=gateway.traffic.own(),
            breakers=gateway.records.watch.breakers.own(now),
        )

    def _set_own_places(self, settings: ServeSettings) -> None:
        has_gate = self.gateway.scheduling.flow_control is not None
        self._turns.own = own_places(settings.flow, self._workers, has_gate=has_gate)

    def _tell_outcome(self, engine: str, has_failed: bool) -> None:
        self._link.send(OutcomeTold(engine, has_failed))

    def _watched(self, fleet: Fleet, settings: ServeSettings) -> HubWatch:
        del settings
        return HubWatch(fleet, self._index, self._link.send, self._listen)

    def _listen(self) -> None:
        """Everything is there that a message may be about."""
        watch = self.gateway.fleet.watch
        assert isinstance(watch, HubWatch)
        gate = self.gateway.director.gate
        if gate is not None:
            self._peers.watch(gate.quarantine)
        watch.drained = self.gateway.standing.drained
        self._does = self._what_to_do(watch)
        self._watch = watch
        for message in self._waiting:
            self.heard(message)
        self._waiting.clear()

    async def start(self) -> None:
        await self.gateway.start()
        self._link.send(Ready())

    async def close(self) -> None:
        await self._tasks.close()
        await self.gateway.close()
        self._link.close()

    async def reload(self, read: Callable[[], ServeSettings]) -> None:
        """Nothing: the hub tells when, and what."""

    def stop_accepting(self) -> None:
        self.gateway.stop_accepting()

    def cut_connections(self) -> None:
        self.gateway.cut_connections()

    def heard(self, message: Message) -> None:
        """Do what the hub tells, once everything is there."""
        if self._watch is None:
            self._waiting.append(message)
            return
        do = self._does.get(type(message))
        if do is None:
            log.error("the hub sent %s, which is no message to a worker", type(message))
        else:
            do(message)

    def _what_to_do(self, watch: HubWatch) -> dict[type[Message], Callable[[Any], None]]:
        gateway, link, peers = self.gateway, self._link, self._peers
        return {
            Operations: watch.operations,
            EnginesTold: watch.engines,
            Settled: lambda _: watch.settled(),
            RulesTold: lambda told: gateway.follow_rules(
                dict(told.objectives), list(told.rewrites)
            ),
            FromOther: peers.hear,
            Turn: self._turns.heard,
            Full: self._turns.heard_full,
            Wanted: self._want,
            OtherEnded: lambda told: peers.gone(told.place, time.monotonic()),
            OutcomeTold: lambda told: gateway.standing.hear(
                told.engine, told.has_failed, time.monotonic()
            ),
            Prepare: lambda told: link.send(Prepared(told.number, self._why_not(told.settings))),
            Commit: lambda _: self._commit(),
            AskNumbers: lambda told: link.send(
                Numbers(told.number, numbers_told(gateway.metrics.collect()))
            ),
            Ping: self._pinged,
            Drain: self._drain,
            AskRecords: lambda told: link.send(self._records(told)),
        }

    def hub_has_gone(self) -> None:
        log.warning(
            "the hub has ended; this worker goes on with what it knows for %g s, and ends then",
            LINGER_SECONDS,
        )
        loop = asyncio.get_running_loop()
        if self._watch is None:
            loop.call_soon(signal.raise_signal, signal.SIGTERM)
            return
        self._watch.hub_has_gone()
        self._turns.hub_has_gone()
        loop.call_later(LINGER_SECONDS, signal.raise_signal, signal.SIGTERM)

    def _why_not(self, settings: ServeSettings) -> str | None:
        try:
            self._prepared = self.gateway.reloading.prepare(settings)
        except ConfigError as e:
            return str(e)
        return None

    def _commit(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self._tasks.spawn(self._go_on(prepared))

    async def _go_on(self, apply: Apply) -> None:
        await apply()
        self._set_own_places(self.gateway.reloading.settings)
