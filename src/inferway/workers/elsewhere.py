"""An event stream that a follower follows, as the hub has it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import EngineFacts
from inferway.fleet.event_source import EventSource
from inferway.fleet.silent_zero import StreamEvidence
from inferway.fleet.stream_figures import StreamFigures, no_figures
from inferway.kv.events.removals import Removals
from inferway.kv.events.stream import StreamState
from inferway.kv.index.protocol import Clear, Index
from inferway.model import Cut, Endpoint, HolderId, block_size_of
from inferway.workers.follower_messages import (
    CountNoCopies,
    FactsTold,
    FollowedTold,
    FollowerMessage,
    FollowStream,
    Heard,
    Resync,
)


class FollowsStreams(Protocol):
    """Who has streams followed."""

    def begin(self, stream: StreamElsewhere) -> None:
        """Have the stream followed from now on."""

    def end(self, stream: StreamElsewhere) -> None:
        """Have it followed no more."""

    def send(self, stream: StreamElsewhere, message: FollowerMessage) -> None:
        """Tell its follower, if it has one now."""


class StreamElsewhere:
    """`fleet.engine.Subscriber`. While its follower is away, what is believed of the engine is
    stale; the next one begins with nothing, and what it hears first replaces all that."""

    def __init__(
        self,
        engine: Engine,
        source: EventSource,
        endpoint: Endpoint,
        index: Index,
        follows: FollowsStreams,
    ) -> None:
        self.engine = engine
        self.endpoint_followed = endpoint
        self.removals = Removals()
        self.last_batch_at: float | None = None
        self.last_seq: int | None = None
        self.number = 0  # that its follower knows it by; 0: nobody does
        self._source = source
        self._index = index
        self._follows = follows
        self._figures = no_figures()
        self._state = StreamState.BLIND
        self._may_report = False
        self._cut_seen: Cut | None = None
        self._counts_copies = True
        self._facts: EngineFacts | None = None  # that its follower knows
        self._on_state: Callable[[], None] | None = None
        self._on_told: Callable[[], None] | None = None
        self._is_heard = False  # its follower has told of it
        self._was_heard = False  # another one before has

    # fleet.engine.Subscriber

    @property
    def source(self) -> EventSource:
        return self._source

    @property
    def holder(self) -> HolderId:
        return self.endpoint_followed.holder

    @property
    def endpoint(self) -> str | None:
        return self._source.endpoint

    @property
    def state(self) -> StreamState:
        state = self._state
        if not self._is_heard and state is not StreamState.BLIND:
            return StreamState.STALE
        if state is StreamState.EXACT and self._index.num_evicted(self.holder):
            return StreamState.PARTIAL  # which its follower does not know
        return state

    @property
    def cut_seen(self) -> int | None:
        return self._cut_seen

    @property
    def may_report(self) -> bool:
        return self._is_heard and self._may_report

    @property
    def figures(self) -> StreamFigures:
        return self._figures

    def evidence(self) -> StreamEvidence:
        figures = self._figures
        return StreamEvidence(
            connected=True,
            batches=figures.stats.batches,
            stored_blocks=figures.blocks.stored,
            skipped=sum(figures.stats.skipped.values()),
            block_size_seen=None if self._cut_seen is None else block_size_of(self._cut_seen),
            topic=figures.topic,
        )

    def start(
        self,
        on_state: Callable[[], None] | None = None,
        on_told: Callable[[], None] | None = None,
    ) -> None:
        self._on_state, self._on_told = on_state, on_told
        self._follows.begin(self)

    async def close(self) -> None:
        self._follows.end(self)

    async def give_back(self) -> None:
        """Nothing: its follower does."""

    def drops_last_block(self) -> None:
        self.engine.drops_last_block()
        self.tell_facts()

    def recheck(self) -> None:
        if self._source.replay is not None:
            self.resync()

    def restarted(self) -> None:
        self._follows.send(self, Resync(self.number, has_restarted=True))

    def resync(self) -> None:
        self._follows.send(self, Resync(self.number))

    def count_no_copies(self) -> None:
        if self._counts_copies:
            self._counts_copies = False
            self._follows.send(self, CountNoCopies(self.number))

    # what its follower is told

    def order(self, number: int) -> FollowStream:
        """Return what a follower that begins with it is told."""
        self.number, self._facts = number, self.engine.facts
        return FollowStream(
            *(number, self.engine.settings, self._facts),
            *(self._source, self.endpoint_followed, self._counts_copies),
        )

    def tell_facts(self) -> None:
        """Tell its follower what the engine has told of itself since."""
        facts = self.engine.facts
        if facts is not None and facts is not self._facts:
            self._facts = facts
            self._follows.send(self, FactsTold(self.number, facts))

    # what its follower tells

    def heard(self, told: Heard) -> None:
        """Take over what the engine's events change."""
        self._begin_anew()
        self.last_seq, self.last_batch_at = told.seq, time.monotonic()
        self._index.apply(told.ops)
        self.removals.note(told.ops, told.seq, self.last_batch_at)
        if self._on_told is not None:
            self._on_told()

    def told(self, told: FollowedTold) -> None:
        """Take over how the stream is."""
        before = self._shown
        self._begin_anew()
        self._state, self._may_report = told.state, told.may_report
        self._cut_seen, self._figures = told.cut_seen, told.figures
        self.last_seq, self.last_batch_at = told.figures.last_seq, told.figures.last_batch_at
        dialects, rank = self.engine.dialects, self._source.rank
        if told.dialect is not None:
            dialects[rank] = told.dialect
        if self._shown != before and self._on_state is not None:
            self._on_state()

    def lost(self) -> None:
        """Its follower has ended."""
        before, self.number = self._shown, 0
        self._was_heard, self._is_heard = self._was_heard or self._is_heard, False
        if self._shown != before and self._on_state is not None:
            self._on_state()

    @property
    def _shown(self) -> tuple[object, ...]:
        return self.state, self.may_report, self._cut_seen

    def _begin_anew(self) -> None:
        if self._is_heard:
            return
        self._is_heard = True
        if self._was_heard:
            clear = [Clear(self.holder)]
            self._index.apply(clear)
            self.removals.note(clear, None, time.monotonic())
