"""A worker knows of the engines what the hub tells, and has the hub do some things with its
requests. Each class is what the request path knows by the same methods where there is one process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from inferway.cluster.bus.messages import (
    DecisionTold,
    EngineNoted,
    EnginesTold,
    EngineTold,
    Finding,
    IndexChanged,
    LiveSample,
    Message,
    PromptsOffered,
    PromptTold,
    Report,
    StreamTold,
)
from inferway.config import IndexSettings, ProbeSettings
from inferway.errors import ConfigError
from inferway.fleet.columns import EndpointColumns
from inferway.fleet.engine import Engine
from inferway.fleet.event_source import EventSource
from inferway.fleet.fleet import Fleet
from inferway.fleet.load import Load
from inferway.fleet.prober import LivePrompt, Prober
from inferway.fleet.stream_figures import StreamEvidence
from inferway.fleet.watch import Watch
from inferway.kv.events.removals import Removals
from inferway.kv.events.stream import StreamState
from inferway.kv.index.copied import CopiedIndex
from inferway.kv.index.prefix_lengths import different_lengths
from inferway.kv.index.protocol import TIER_WEIGHTS, Clear, MatchResult, Op, Remove
from inferway.metrics import Family
from inferway.model import BlockKey, Cut, Endpoint, HolderId, Places, Prompt, block_size_of
from inferway.prompts.served import ServedModel

Send = Callable[[Message], None]

FADE_SECONDS = 0.5  # between two looks at what has faded
MOST_ASKED = 4096  # blocks that the hub is told of at a time
_AWAY = "the hub ended before it had told of all engines"


class HeardIndex(CopiedIndex):
    """A copy of the hub's index. What this process would change by itself, it asks the hub for,
    which tells all workers."""

    def __init__(self, send: Send, *, weights: Sequence[float] = TIER_WEIGHTS) -> None:
        """`send`: to the hub."""
        super().__init__(weights=weights)
        self._asked: set[BlockKey] = set()
        self.send = send

    def apply(self, ops: Iterable[Op]) -> None:
        self.send(EngineNoted(Finding.LACKS, ops=list(ops)))

    def asked(self) -> list[BlockKey]:
        """Return the last blocks that prompts have matched since it was asked before, if the hub
        should know."""
        asked = list(self._asked)
        self._asked.clear()
        return asked


class AskedIndex(HeardIndex):
    """A copy for a hub whose index is bounded, which must know what prompts ask for, or that may
    make room."""

    def match_now(self, keys: Sequence[BlockKey], places: Places | None = None) -> MatchResult:
        found = super().match_now(keys, places)
        if found.blocks and len(self._asked) < MOST_ASKED:
            self._asked.add(keys[max(different_lengths(found.blocks)) - 1])
        return found


def heard_index(settings: IndexSettings, send: Send) -> HeardIndex:
    """Return the worker's copy of an index that the hub has by these settings."""
    is_bounded = settings.max_blocks is not None or settings.max_bytes is not None
    return (AskedIndex if is_bounded else HeardIndex)(send, weights=settings.tier_weights)


@dataclass(slots=True)
class FollowedStream:
    """An event stream that the hub follows (`fleet.engine.StreamView`)."""

    engine: str
    holder: HolderId
    send: Send
    removals: Removals = field(default_factory=Removals)
    source: EventSource = field(init=False)
    state: StreamState = field(init=False)
    may_report: bool = field(init=False)
    cut_seen: Cut | None = field(init=False)
    _told: StreamTold = field(init=False)

    def hear(self, told: StreamTold, cut: Cut | None) -> None:
        """Take over what the hub tells of the stream now."""
        self._told, self.cut_seen = told, cut
        self.source, self.state, self.may_report = told.source, told.state, told.may_report

    def hub_has_gone(self) -> None:
        """Take what is known of the engine's cache for stale."""
        self.state = StreamState.STALE

    def evidence(self) -> StreamEvidence:
        told = self._told
        return StreamEvidence(
            connected=True,
            batches=told.batches,
            stored_blocks=told.stored_blocks,
            skipped=told.skipped,
            block_size_seen=None if self.cut_seen is None else block_size_of(self.cut_seen),
            topic=told.topic,
        )

    def drops_last_block(self) -> None:
        self.send(EngineNoted(Finding.DROPS_LAST_BLOCK, self.engine, self.holder))

    def recheck(self) -> None:
        self.send(EngineNoted(Finding.ADDS_NOT_UP, self.engine, self.holder))

    def count_no_copies(self) -> None:
        self.send(EngineNoted(Finding.REPORTS, self.engine, self.holder))


class HubWatch(Watch):
    """Tells the fleet what the hub tells, which finds the engines and looks at them."""

    def __init__(
        self,
        fleet: Fleet,
        index: HeardIndex,
        send: Send,
        listening: Callable[[], None],
        on_drained: Callable[[str, bool], None],
    ) -> None:
        """`listening` is called when the hub may be heard: then all else is there. `on_drained`:
        whether the engine of that name is drained."""
        self._on_drained = on_drained
        self._listening = listening
        self._fleet = fleet
        self._index = index
        self._send = send
        self._streams: dict[HolderId, FollowedStream] = {}
        self._settled: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # what the fleet asks

    async def start(self) -> None:
        self._settled = asyncio.get_running_loop().create_future()
        self._listening()
        await self._settled

    def go_on(self) -> None:
        loop = asyncio.get_running_loop()
        self._fleet.table.fade(loop.time())
        self._timer = loop.call_later(FADE_SECONDS, self.go_on)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def suspect(self, name: str) -> None:
        self._send(EngineNoted(Finding.HAS_FAILED, name))

    # what the hub tells

    def settled(self) -> None:
        """Go on: all that the hub knows has been told."""
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def hub_has_gone(self) -> None:
        """Take all for stale: nothing confirms any more what is believed."""
        if self._settled is not None and not self._settled.done():
            self._settled.set_exception(ConfigError(_AWAY))
        for stream in self._streams.values():
            stream.hub_has_gone()
        self._fleet.table.nobody_follows()

    def index_changed(self, told: IndexChanged) -> None:
        changes, now = told.changes, time.monotonic()
        self._index.hear(changes)
        for holder in changes.cleared:
            self._note_removal(Clear(holder), told.seq, now)
        for change in changes.blocks:
            if change.is_removal and change.holder is not None:
                self._note_removal(Remove(change.holder, change.keys), told.seq, now)

    def engines(self, told: EnginesTold) -> None:
        fleet = self._fleet
        names = set(told.names)
        for engine in [engine for engine in fleet.engines if engine.name not in names]:
            self._forget(engine)
        for each in told.changed:
            self._engine(each)
        fleet.prober.differed.update(told.differed)

    def _note_removal(self, op: Op, seq: int | None, now: float) -> None:
        stream = self._streams.get(op.holder)
        if stream is not None:
            stream.removals.note((op,), seq, now)

    def _engine(self, told: EngineTold) -> None:
        fleet, name = self._fleet, told.settings.label
        engine = next((e for e in fleet.engines if e.name == name), None)
        if engine is not None and engine.settings != told.settings:
            self._forget(engine)
            engine = None
        if engine is None:
            engine = Engine(told.settings, told.settings.authorization())
        before = engine.outage
        engine.take_over(
            *(told.facts, told.healthy, told.outage, Load(adapters=told.adapters)),
            endpoints=[replace(e, headers=tuple(e.headers)) for e in told.endpoints],
            proofs=told.proofs,
            followed=[self._stream(name, stream, told.cut) for stream in told.streams],
        )
        self._on_drained(name, told.is_drained)
        fleet.suspend(engine, told.suspension)
        fleet.follow(engine)
        if engine.outage != before:
            fleet.on_outage(engine)

    def _stream(self, engine: str, told: StreamTold, cut: Cut | None) -> FollowedStream:
        stream = self._streams.get(told.holder)
        if stream is None or stream.engine != engine:
            stream = self._streams[told.holder] = FollowedStream(engine, told.holder, self._send)
        stream.hear(told, cut)
        return stream

    def _forget(self, engine: Engine) -> None:
        self._fleet.follow_no_more(engine)
        self._on_drained(engine.name, False)
        self._fleet.suspend(engine, None)
        for stream in engine.followed:
            if self._streams.get(stream.holder) is stream:
                del self._streams[stream.holder]


class HubProber(Prober):
    """Has the hub compare live prompts. What it has found out comes with the engines."""

    def __init__(
        self,
        send: Send,
        columns: EndpointColumns,
        settings: ProbeSettings,
        engines: Mapping[str, Engine],
        *more: Any,
        sends_ids: bool,
    ) -> None:
        """`columns`: of the endpoints; the rest as `Prober` takes it."""
        super().__init__(settings, engines, *more, sends_ids=sends_ids)
        self._send = send
        self._columns = columns
        self._by_name = engines

    @property
    def any_stray(self) -> bool:
        return any(
            proof.live is not None
            for engine in self._by_name.values()
            for proof in engine.proofs.values()
        )

    def strayed(self, model: ServedModel, endpoint: Endpoint) -> bool:
        engine = self._by_name.get(endpoint.engine)
        if engine is None:
            return False
        proof = engine.proofs.get(self.subject(engine, model.name))
        return proof is not None and proof.live is not None

    def may_ask(self, endpoint: Endpoint) -> bool:
        engine = self._by_name.get(endpoint.engine)
        is_well = engine is not None and engine.healthy and engine.suspension is None
        return is_well and not self._columns.waiting[endpoint.holder]

    def sample(self, live: LivePrompt, done: Callable[[], None]) -> None:
        where = live.endpoint
        ids = None if live.ids is None else [ids.tobytes() for ids in live.ids]
        fields = msgspec.json.encode(live.fields)
        told = LiveSample(live.model.name, where.engine, where.holder, live.path, fields, ids)
        self._send(Report(told))
        done()


class HubReports:
    """Sends the hub prompts while it wants them, and decisions, which it publishes: it has the
    socket (`telemetry.observers.WantsPrompts`, `telemetry.publisher.Publisher`)."""

    def __init__(self, send: Send) -> None:
        self.wanted = False
        self._send = send

    def heard(self, wanted: bool) -> None:
        """Take over whether the hub wants prompts."""
        self.wanted = wanted

    def offer(self, prompts: Mapping[int, Sequence[Prompt]], **of: str | None) -> None:
        told = {
            size: [
                PromptTold(each.token_ids.tobytes(), list(each.block_keys), list(each.media))
                for each in items
            ]
            for size, items in prompts.items()
        }
        self._send(Report(PromptsOffered(told, **of)))

    def publish(self, topic: str, message: dict[str, Any]) -> None:
        self._send(Report(DecisionTold(topic, msgspec.msgpack.encode(message))))

    def families(self) -> Iterator[Family]:
        return iter(())
