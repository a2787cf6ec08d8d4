"""The hub's side: tells workers what the engines are and hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from inferway.cluster.bus.link import Link
from inferway.cluster.bus.messages import (
    EnginesTold,
    EngineTold,
    IndexChanged,
    Message,
    StreamTold,
)
from inferway.fleet.engine import Engine, ProbeState
from inferway.fleet.fleet import Fleet
from inferway.fleet.subscriber import EventSubscriber
from inferway.kv.index.changes import ChangeLog, IndexChanges
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import MatchResult, Op
from inferway.model import BlockKey, HolderId, Places

# Changes of engines are told together: at the start there are thousands.
TOGETHER_SECONDS = 0.02

# Most blocks of one message: what a worker does at a time.
MOST_BLOCKS = 1024


class ToldIndex(MemoryIndex):
    """A memory index of which others are told what changes."""

    _tell_changes: Callable[[IndexChanges], None] | None = None

    def tell_to(self, tell: Callable[[IndexChanges], None] | None) -> None:
        """Tell what changes from now on; with None no more."""
        self._tell_changes = tell
        self._log = ChangeLog(self._tree, self._holders)
        if tell is None:
            self._log.close()

    def apply(self, ops: Iterable[Op]) -> None:
        for piece in _pieces(ops):
            super().apply(piece)
            self._tell(piece)

    def sweep(self, max_blocks: int) -> bool:
        is_more = super().sweep(max_blocks)
        self._tell(())
        return is_more

    def match_now(self, keys: Sequence[BlockKey], places: Places | None = None) -> MatchResult:
        found = super().match_now(keys, places)
        self._tell(())  # it may have settled some
        return found

    def picture(self) -> Iterator[IndexChanges]:
        """Yield all that it holds, in pieces of a millisecond. Whoever is told them and all that is
        told meanwhile has an equal copy."""
        return self._log.picture()

    def _tell(self, ops: Sequence[Op]) -> None:
        if self._tell_changes is not None:
            changes = self._log.take(ops)
            if changes is not None:
                self._tell_changes(changes)


class FleetTeller:
    """Tells `send`, which passes it on to all workers, what has changed. `engines` and `tell_held`
    are what a new worker is told first."""

    def __init__(
        self,
        fleet: Fleet,
        index: ToldIndex,
        is_drained: Callable[[str], bool],
        send: Callable[[Message], None],
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._is_drained = is_drained
        self._send = send
        self._told: dict[str, EngineTold] = {}
        self._differed: list[str] = []
        self._subscribers: dict[HolderId, EventSubscriber] = {}
        self._timer: asyncio.TimerHandle | None = None
        index.tell_to(self._changed)

    def close(self) -> None:
        self._index.tell_to(None)
        if self._timer is not None:
            self._timer.cancel()

    def look_soon(self) -> None:
        """Tell of engines that have changed, a little later."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(TOGETHER_SECONDS, self.look)

    def look(self) -> None:
        """Tell of engines that have changed since they were told."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        engines = self._fleet.engines
        self._subscribers = {each.holder: each for engine in engines for each in engine.subscribers}
        now = {engine.name: self._engine(engine) for engine in engines}
        changed = [told for name, told in now.items() if self._told.get(name) != told]
        differed = sorted(self._fleet.prober.differed)
        if changed or now.keys() != self._told.keys() or differed != self._differed:
            self._told, self._differed = now, differed
            self._send(EnginesTold(changed, list(now), differed))

    def engines(self) -> EnginesTold:
        """Return all that was told of engines so far."""
        return EnginesTold(list(self._told.values()), list(self._told), self._differed)

    async def tell_held(self, link: Link) -> None:
        """Tell a new worker all that the index holds. What changes meanwhile it must be told as
        well, from now on."""
        for changes in self._index.picture():
            link.send(IndexChanged(changes))
            await link.drained()
            await asyncio.sleep(0)  # others have their turn

    def _changed(self, changes: IndexChanges) -> None:
        holder = changes.blocks[0].holder if changes.blocks else None
        if holder is None and changes.cleared:
            holder = changes.cleared[0]
        stream = None if holder is None else self._subscribers.get(holder)
        self._send(IndexChanged(changes, None if stream is None else stream.last_seq))

    def _engine(self, engine: Engine) -> EngineTold:
        return EngineTold(
            engine.settings,
            engine.facts,
            engine.healthy,
            engine.cut,
            list(engine.endpoints),
            [_stream(each) for each in engine.subscribers],
            {model: _found(proof) for model, proof in engine.proofs.items()},
            engine.load.adapters,
            self._is_drained(engine.name),
            engine.outage,
            engine.suspension,
        )


def _stream(subscriber: EventSubscriber) -> StreamTold:
    figures = subscriber.figures
    return StreamTold(
        subscriber.source,
        subscriber.holder,
        subscriber.state,
        subscriber.may_report,
        min(figures.stats.batches, 1),
        min(figures.blocks.stored, 1),
        min(sum(figures.stats.skipped.values()), 1),
        figures.topic,
    )


def _found(proof: ProbeState) -> ProbeState:
    """Return what the probe has found out, without what it remembers for itself."""
    return replace(proof, live_left=0, told=set(), live_told=set())


def _pieces(ops: Iterable[Op]) -> Iterator[list[Op]]:
    """Yield the operations a millisecond's work at a time."""
    piece: list[Op] = []
    blocks = 0
    for op in ops:
        piece.append(op)
        blocks += len(getattr(op, "keys", ()))
        if blocks >= MOST_BLOCKS:
            yield piece
            piece, blocks = [], 0
    if piece:
        yield piece
