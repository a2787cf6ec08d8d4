"""A worker's side: knows of the engines what the hub tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from inferway.config import IndexSettings
from inferway.errors import ConfigError
from inferway.fleet.engine import Engine, ProbeState
from inferway.fleet.event_source import EventSource
from inferway.fleet.fleet import Fleet
from inferway.fleet.load import Load
from inferway.fleet.stream_figures import StreamEvidence
from inferway.fleet.watch import Watch
from inferway.kv.events.removals import Removals
from inferway.kv.events.stream import StreamState
from inferway.kv.index.copied import CopiedIndex
from inferway.kv.index.prefix_lengths import different_lengths
from inferway.kv.index.protocol import TIER_WEIGHTS, Clear, MatchResult, Op, Remove
from inferway.model import BlockKey, Cut, HolderId, Places, block_size_of
from inferway.workers.messages import (
    Doubt,
    EnginesTold,
    EngineTold,
    IndexChanged,
    Message,
    ProofTold,
    StreamFinding,
    StreamNoted,
    StreamTold,
    Suspect,
)

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
        self.send = send

    def apply(self, ops: Iterable[Op]) -> None:
        self.send(Doubt(list(ops)))

    def asked(self) -> list[BlockKey]:
        """Return the last blocks that prompts have matched since it was asked before, if the hub
        should know."""
        return []


class AskedIndex(HeardIndex):
    """Of a hub whose index is bounded: it must know what prompts ask for, or that may make room."""

    def __init__(self, send: Send, *, weights: Sequence[float] = TIER_WEIGHTS) -> None:
        super().__init__(send, weights=weights)
        self._asked: set[BlockKey] = set()

    def match_now(self, keys: Sequence[BlockKey], places: Places | None = None) -> MatchResult:
        found = super().match_now(keys, places)
        if found.blocks and len(self._asked) < MOST_ASKED:
            self._asked.add(keys[max(different_lengths(found.blocks)) - 1])
        return found

    def asked(self) -> list[BlockKey]:
        asked = list(self._asked)
        self._asked.clear()
        return asked


def heard_index(settings: IndexSettings, send: Send) -> HeardIndex:
    """Return the worker's copy of an index that the hub has by these settings."""
    is_bounded = settings.max_blocks is not None or settings.max_bytes is not None
    kind = AskedIndex if is_bounded else HeardIndex
    return kind(send, weights=settings.tier_weights)


@dataclass(slots=True)
class FollowedStream:
    """An event stream that the hub follows (`fleet.engine.StreamView`)."""

    engine: str
    told: StreamTold
    cut_seen: Cut | None
    send: Send
    removals: Removals = field(default_factory=Removals)
    is_hub_there: bool = True

    def hear(self, told: StreamTold, cut: Cut | None) -> None:
        """Take over what the hub tells of the stream now."""
        self.told, self.cut_seen = told, cut

    def hub_has_gone(self) -> None:
        """Take what is known of the engine's cache for stale."""
        self.is_hub_there = False

    @property
    def source(self) -> EventSource:
        return self.told.source

    @property
    def holder(self) -> HolderId:
        return self.told.holder

    @property
    def state(self) -> StreamState:
        return self.told.state if self.is_hub_there else StreamState.STALE

    @property
    def may_report(self) -> bool:
        return self.told.may_report

    def evidence(self) -> StreamEvidence:
        told = self.told
        return StreamEvidence(
            connected=True,
            batches=told.batches,
            stored_blocks=told.stored_blocks,
            skipped=told.skipped,
            block_size_seen=None if self.cut_seen is None else block_size_of(self.cut_seen),
            topic=told.topic,
        )

    def drops_last_block(self) -> None:
        self.send(StreamNoted(self.engine, self.holder, StreamFinding.DROPS_LAST_BLOCK))

    def recheck(self) -> None:
        self.send(StreamNoted(self.engine, self.holder, StreamFinding.ADDS_NOT_UP))

    def count_no_copies(self) -> None:
        self.send(StreamNoted(self.engine, self.holder, StreamFinding.REPORTS))


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
        self._send(Suspect(name))

    # what the hub tells

    def settled(self) -> None:
        """All that the hub knows has been told."""
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def hub_has_gone(self) -> None:
        """Nothing confirms any more what is believed."""
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
            proofs={model: _proof(proof) for model, proof in told.proofs.items()},
            followed=[self._stream(name, stream, told.cut) for stream in told.streams],
        )
        self._on_drained(name, told.is_drained)
        fleet.follow(engine)
        if engine.outage != before:
            fleet.on_outage(engine)

    def _stream(self, engine: str, told: StreamTold, cut: Cut | None) -> FollowedStream:
        before = self._streams.get(told.holder)
        if before is not None and before.engine == engine:
            before.hear(told, cut)
            return before
        stream = FollowedStream(engine, told, cut, self._send)
        self._streams[told.holder] = stream
        return stream

    def _forget(self, engine: Engine) -> None:
        self._fleet.follow_no_more(engine)
        self._on_drained(engine.name, False)
        for stream in engine.followed:
            if self._streams.get(stream.holder) is stream:
                del self._streams[stream.holder]


def _proof(told: ProofTold) -> ProbeState:
    return ProbeState(told.state, told.why, told.messages, told.messages_why, told.live)
