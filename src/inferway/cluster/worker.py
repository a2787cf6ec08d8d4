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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from inferway.app import Gateway
from inferway.cluster.bus.inbox import Inbox, shared
from inferway.cluster.bus.link import Link
from inferway.cluster.bus.messages import (
    AskWorker,
    Begin,
    Drain,
    EnginesTold,
    HubTold,
    IndexChanged,
    Judged,
    Message,
    Subject,
    Wanted,
    WorkerAnswer,
)
from inferway.cluster.bus.peer_messages import PeerTold
from inferway.cluster.bus.workers import WorkerOutbox
from inferway.cluster.hub_watch import HubProber, HubReports, HubWatch, heard_index
from inferway.cluster.numbers import told as numbers_told
from inferway.config import ServeSettings
from inferway.errors import ConfigError
from inferway.fleet.fleet import Fleet
from inferway.fleet.shared_columns import SharedColumns
from inferway.indexer import FleetParts, next_turn
from inferway.scheduling.expected_ttft.sharing import open_logs
from inferway.servers import Process
from inferway.tasks import Tasks

LINGER_SECONDS = 10.0

log = logging.getLogger("inferway")


class Worker:
    """A gateway whose fleet is the hub's (`serving.Served`)."""

    def __init__(self, begin: Begin, link: Link, memory: int) -> None:
        """Raises ConfigError."""
        self.settings = begin.settings
        self._hub = Path(begin.hub)
        self._link = link
        self._tasks = Tasks(log, "new settings could not be taken, by a fault of the gateway")
        self._watch: HubWatch | None = None
        self._started = asyncio.Event()
        self._is_ending = False
        self._place, send = begin.place, link.send
        self._index = index = heard_index(begin.settings.index, send)
        self._columns = columns = SharedColumns(memory, begin.place)
        os.close(memory)
        self._outbox = outbox = WorkerOutbox(begin.place, send, next_turn)
        prober = partial(HubProber, send, columns)
        parts = FleetParts(index, columns, self._watched, prober, outbox.overlay)
        self._reports = HubReports(send)
        process = Process(
            *(parts, begin.hub, False),
            publisher=self._reports if begin.publishes else None,
            orphans=self._reports,
            on_outcome=lambda engine, failed: send(Judged(Subject.ENGINE, engine, failed)),
            on_suspect=lambda digest, engine, counts: send(
                Judged(Subject.REQUEST, digest, counts, engine)
            ),
            on_judged=lambda spec, struck: send(Judged(Subject.SHAPE, spec, struck)),
        )
        self.gateway = Gateway(begin.settings, picks=begin.picks, process=process)
        link.when_lost(self._hub_has_gone)

    def _drain(self, told: Drain) -> None:
        draining, engine = self.gateway.draining, self.gateway.fleet.engine(told.engine)
        if told.moves_streams:
            draining.move_streams(told.engine, told.seconds)
        elif engine is None:
            return
        elif told.seconds is None:
            self._tasks.spawn(draining.resume(engine))
        else:
            draining.drain(engine, told.seconds)

    def _note_drained(self, engine: str, is_drained: bool) -> None:
        drained = self.gateway.standing.drained
        (drained.add if is_drained else drained.discard)(engine)

    def _watched(self, fleet: Fleet, settings: ServeSettings) -> HubWatch:
        del settings
        return HubWatch(fleet, self._index, self._link.send, self._listen, self._note_drained)

    def _listen(self) -> None:
        """Everything is there that a message may be about."""
        watch = self.gateway.fleet.watch
        assert isinstance(watch, HubWatch)
        sharing = shared(self.gateway.learning_plugins, self._outbox.learned)
        open_logs(sharing, self._columns.sent, self._place)
        self._inbox = Inbox(sharing, self._outbox.overlay)
        self._watch = watch
        self._link.listen(self._heard)

    async def start(self) -> None:
        await self.gateway.start()
        self._started.set()
        self._link.send(WorkerAnswer(Wanted.START))

    async def close(self) -> None:
        await self._tasks.close()
        await self.gateway.close()
        self._link.close()

    async def reload(self, read: Callable[[], ServeSettings]) -> None:
        """Do nothing: the hub tells when, and what."""

    def stop_accepting(self) -> None:
        self._is_ending = True
        self.gateway.stop_accepting()

    def cut_connections(self) -> None:
        self.gateway.cut_connections()

    def _heard(self, message: Message) -> None:
        """Do what the hub tells."""
        watch = self._watch
        assert watch is not None
        match message:
            case IndexChanged():
                watch.index_changed(message)
            case PeerTold():
                self._inbox.hear(message, time.monotonic())
            case EnginesTold():
                watch.engines(message)
            case AskWorker():
                self._asked(message)
            case Judged():
                self._judged(message)
            case HubTold():
                self._reports.heard(message.wants_prompts)
                self.gateway.follow_rules(dict(message.objectives), list(message.rewrites))
                if message.is_all:
                    watch.settled()
            case Drain():
                self._drain(message)
            case Begin():
                self._tasks.spawn(self._go_on(message.settings))
            case _:
                log.error("the hub sent %s, which is no message to a worker", type(message))

    def _asked(self, ask: AskWorker) -> None:
        gateway = self.gateway
        about: dict[str, Any] = {}
        match ask.wanted:
            case Wanted.ALIVE:
                hand_overs = gateway.draining.all_progress()
                about = {"asked": self._index.asked(), "hand_overs": hand_overs}
            case Wanted.NUMBERS:
                about = {"families": numbers_told(gateway.metrics.collect())}
            case Wanted.SNAPSHOTS:
                about = {"snapshots": gateway.snapshots(ask.since.get(self._place, {}))}
            case Wanted.SETTINGS if ask.settings is not None:
                about = {"error": self._why_not(ask.settings)}
        self._link.send(WorkerAnswer(ask.wanted, ask.number, **about))

    def _judged(self, told: Judged) -> None:
        """Take over what another worker has judged."""
        director = self.gateway.director
        match told.subject:
            case Subject.ENGINE:
                self.gateway.standing.hear(told.name, told.is_bad, time.monotonic())
            case Subject.SHAPE if director.gate is not None:
                director.gate.quarantine.hear(told.name, told.is_bad)
            case Subject.REQUEST if director.quarantine is not None:
                director.quarantine.hear(told.name, told.engine, told.is_bad)

    def _hub_has_gone(self) -> None:
        log.warning(
            "the hub has ended; this worker goes on with what it knows for %g s, and ends then",
            LINGER_SECONDS,
        )
        self._forget_hub()
        loop = asyncio.get_running_loop()
        if self._watch is None:
            loop.call_soon(self._end)
            return
        self._watch.hub_has_gone()
        loop.call_later(LINGER_SECONDS, self._end)

    def _forget_hub(self) -> None:
        """Remove the files that a hub which was killed has left."""
        with suppress(OSError):  # another worker was first
            self._hub.unlink()
            self._hub.parent.rmdir()

    def _end(self) -> None:
        if not self._is_ending:  # a second signal would cut the answers that still run
            signal.raise_signal(signal.SIGTERM)

    def _why_not(self, settings: ServeSettings) -> str | None:
        try:
            self.gateway.reloading.prepare(settings)
        except ConfigError as e:
            return str(e)
        return None

    async def _go_on(self, settings: ServeSettings) -> None:
        await self._started.wait()
        try:
            apply = self.gateway.reloading.prepare(settings)
        except ConfigError as e:
            log.error("this worker ends, for the others go on with other settings: %s", e)
            self._end()
            return
        await apply()
