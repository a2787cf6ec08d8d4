"""The subscriber that applies one engine's event stream, or one data-parallel rank's, to the index.

The follower (`kv.events.event_applier`) knows what to do; a subclass brings what the engine says:
`zmq_subscriber` by ZeroMQ, `subscribing` by asking again and again. The follower's steps are
done in order, one thing at a time, and at once: for most batches, waking a task would take as long
as what there is to do. What takes longer is done in slices, and others have the event loop between
them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from inferway.fleet.event_source import EventSource
from inferway.fleet.stream_figures import (
    SnapshotProof,
    StreamEvidence,
    StreamFigures,
    StreamSnapshot,
)
from inferway.kv.events.adapters import sglang
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event import Batch, EventAdapter
from inferway.kv.events.event_applier import EventApplier, Steps
from inferway.kv.events.groups import NO_FACTS, CacheFacts
from inferway.kv.events.hidden_places import Beside
from inferway.kv.events.holder_snapshot import HolderSnapshot, SavedHolder
from inferway.kv.events.removals import Removals
from inferway.kv.events.stream import EventStream, Replay, StreamState
from inferway.kv.index.protocol import Index
from inferway.loop_turns import SlicedProtocol
from inferway.model import BlockKey, Cut, HolderId, TokenIds
from inferway.tasks import Tasks, TimeSlice

log = logging.getLogger("inferway.events")

_FREED_BLOCKS = 1024  # between two looks at the clock: some tens of microseconds

OnBatch = Callable[[HolderId, Batch], None]


@dataclass(frozen=True, slots=True)
class Subscription:
    """One event stream, and where what it tells goes."""

    source: EventSource
    holder: HolderId
    block_size: int
    index: Index
    name: str | None = None  # for the log: which engine
    on_batch: OnBatch | None = None
    snapshot: StreamSnapshot | None = None  # what it begins with; closed with the stream
    lora_path: Callable[[str], str | None] = lambda _: None  # where an adapter is from, by its name
    cache_facts: Callable[[], CacheFacts] = lambda: NO_FACTS  # what events do not say of the cache
    on_drop: Callable[[], None] = lambda: None  # the engine drops the last block it matches


class EventSubscriber(ABC):
    """Keeps the index true for one holder."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        adapter: EventAdapter = sglang.open_batch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        source, index, on_batch = subscription.source, subscription.index, subscription.on_batch
        self.source = source
        self.holder = holder = subscription.holder
        self.blocks = EngineBlocks(
            holder,
            subscription.block_size,
            holdings=index,
            lora_path=subscription.lora_path,
            cache_facts=subscription.cache_facts,
        )
        self.follower = EventApplier(
            self.blocks,
            adapter=adapter,
            can_replay=source.replay is not None,
            holdings=index,
            on_batch=partial(on_batch, holder) if on_batch is not None else None,
            on_skip=self._warn,
        )
        self.stats = self.follower.stats
        self.removals = Removals()  # that the engine has told of, of late
        self.last_batch_at: float | None = None  # by `clock`
        self.last_topic: str | None = None  # of the last message, whatever it was
        self._snapshot = subscription.snapshot
        self._on_state: Callable[[], None] | None = None
        self._on_told: Callable[[], None] | None = None
        self._on_drop = subscription.on_drop
        self._name = subscription.name or source.endpoint
        self._index = index
        self._told_state: StreamState | None = None
        self._clock = clock
        self._tasks = Tasks(log, self._no_longer_read)
        self._slice = TimeSlice(clock)
        self._waiting: deque[Callable[[], Steps]] = deque()  # what has happened meanwhile
        self._steps: Steps | None = None  # of what is being done
        self._is_busy = False  # something is being done, or waits for its turn
        self._held: list[SlicedProtocol] = []  # not read from while something waits
        self._idle = asyncio.Event()  # nothing waits for its turn
        self._idle.set()
        self._turn: asyncio.Handle | None = None  # when it goes on
        self._has_failed = False

    @property
    def _no_longer_read(self) -> str:
        return f"engine {self._name}: its event stream is no longer read"

    @property
    def stream(self) -> EventStream:
        """The state machine that orders the engine's batches."""
        return self.follower.stream

    @property
    def state(self) -> StreamState:
        """The state of the picture of the engine's cache: how true it is."""
        return self.follower.state

    @property
    def endpoint(self) -> str | None:
        """The address that the engine's events come from; None if it cannot be used."""
        return self.source.endpoint

    @property
    def last_seq(self) -> int | None:
        return self.stream.last_seq

    @property
    def figures(self) -> StreamFigures:
        stream, blocks = self.stream, self.blocks
        return StreamFigures(
            self.stats,
            stream.stats,
            blocks.stats,
            from_start=stream.from_start,
            last_seq=stream.last_seq,
            last_batch_at=self.last_batch_at,
            topic=self.last_topic,
            copies_count=blocks.copies_count,
            num_orphans=blocks.num_orphans,
            caches=blocks.layout.kinds if blocks.layout is not None else (),
            unplaced=blocks.unplaced_kinds,
            snapshot=None if self._snapshot is None else self._snapshot.figures,
        )

    @property
    def cut_seen(self) -> Cut | None:
        """The cut of prompts that the engine's events show; None before the first event."""
        return self.blocks.cut_seen

    def start(
        self,
        on_state: Callable[[], None] | None = None,
        on_told: Callable[[], None] | None = None,
    ) -> None:
        """Begin to listen, once the snapshot is loaded if there is one: what is published meanwhile
        the replay brings. A source that cannot be opened is logged: the engine stays blind.
        `on_state` is called when `state` has changed, `on_told` when batches have come."""
        self._on_state, self._on_told = on_state, on_told
        if self._snapshot is None:
            self._open()
        else:
            self._tasks.spawn(self._load(self._snapshot))

    async def _load(self, snapshot: StreamSnapshot) -> None:
        await snapshot.load(self)
        self._open()

    async def close(self) -> None:
        """Stop the subscriber. It may be called twice."""
        if self._snapshot is not None:
            self._snapshot.close(self)
        await self._tasks.close()
        self._stop()

    async def give_back(self) -> None:
        await give_back(self.blocks)

    @property
    def may_report(self) -> bool:
        """True if a report would tell something new, and nothing wrong (`engine.StreamView`)."""
        blocks = self.blocks
        return (
            self.state is StreamState.PARTIAL
            and not self.stream.from_start
            and blocks.cut_seen is not None  # else its groups are not known yet
            and (blocks.layout is None or blocks.layout.is_plain)
        )

    def evidence(self) -> StreamEvidence:
        """Return what the stream has brought, for the silent-zero alarm, without what its engine
        is."""
        return StreamEvidence(
            connected=True,
            batches=self.stats.batches,
            stored_blocks=self.blocks.stats.stored,
            skipped=sum(self.stats.skipped.values()),
            block_size_seen=self.blocks.block_size_seen,
            topic=self.last_topic,
            first_tokens=self.blocks.first_tokens,
        )

    def drops_last_block(self) -> None:
        """Take note that the engine drops the last block it matches: from its next events on that
        is reckoned with."""
        self._on_drop()

    def recheck(self) -> None:
        """Compare with the engine now, because something does not add up; unless that would cost
        all that is believed."""
        if self.stream.can_replay:
            self.resync()

    def resync(self) -> None:
        """Compare with the engine now: it was away, or something does not add up."""
        if self._is_open:
            self._feed(self.follower.recheck)

    def restarted(self) -> None:
        """Forget what the engine held before its process ended, unless its new process has been
        compared with that already. What the new one holds, a replay brings."""
        if self._is_open:
            self._feed(self.follower.restarted)

    def cleared(self) -> None:
        """Take note that the engine has dropped all it held, of which it has not told yet."""
        if self._is_open:
            self._feed(self.follower.cleared)

    def count_no_copies(self) -> None:
        """Let any removal remove a block from here on (`EngineBlocks.count_no_copies`). The state
        may be another then."""
        if self.blocks.copies_count:
            if self._snapshot is not None:
                self._snapshot.count_no_copies()
            self.blocks.count_no_copies()
            self._tell()

    async def adopt(self, hashes: Sequence[int], keys: Sequence[BlockKey]) -> None:
        """Give orphans their keys (`EngineBlocks.adopt`), between two batches."""
        self._feed(lambda: self.blocks.adopt_in_steps(hashes, keys))
        await self._idle.wait()

    async def expect(self, token_ids: TokenIds, keys: Sequence[BlockKey], beside: Beside) -> None:
        """Take a prompt that is on its way there (`EngineBlocks.expect_prompt`), between two
        batches."""
        self._feed(lambda: self.blocks.expect_prompt(token_ids, keys, beside))
        await self._idle.wait()

    # a restart of the gateway: as `stream_figures.Stream` has it

    @property
    def num_changes(self) -> int:
        stats = self.stats
        return stats.batches + stats.forgotten + self.blocks.stats.adopted

    @property
    def losses(self) -> tuple[int, int]:
        return self.stats.forgotten, self._index.num_evicted(self.holder)

    async def take_snapshot(self) -> HolderSnapshot | None:
        taken: list[HolderSnapshot] = []
        self._feed(lambda: self.follower.take(taken.append))
        await self._idle.wait()
        return taken[0] if taken else None

    async def restore(self, saved: SavedHolder) -> int:
        self._feed(lambda: self.follower.restore(saved))
        await self._idle.wait()
        return self.blocks.num_blocks

    # what a subclass does

    @property
    @abstractmethod
    def _is_open(self) -> bool:
        """Whether the source is open."""

    @abstractmethod
    def _open(self) -> None:
        """Begin to read the source, in tasks of `_tasks`. What is read goes to `_feed`."""

    def _ask_for(self, replay: Replay) -> None:
        """Ask the engine for this replay instead of the last one. A source without a replay socket
        is never asked."""
        raise NotImplementedError(f"{self.source.endpoint} has no replays: {replay}")

    # what is done about it

    def _feed(self, *happened: Callable[[], Steps]) -> None:
        """Do what comes of each: now, or when all that has happened before is done."""
        if self._has_failed:
            return
        self._waiting += happened
        if not self._is_busy:
            self._is_busy = True
            self._go_on()

    def _lose(self) -> Steps:
        """The link is gone."""
        self.follower.lost()
        return iter(())

    def _go_on(self) -> None:
        """Until all is done, or it is the turn of others."""
        self._slice.begin()
        stats = self.stats
        batches, forgotten = stats.batches, stats.forgotten
        try:
            is_done = self._do()
            if stats.batches != batches:
                self.last_batch_at = self._clock()
                if self._on_told is not None:
                    self._on_told()
            if stats.forgotten != forgotten:
                log.info("engine %s: the view of its cache is dropped", self._name)
                self._ended_in(SnapshotProof.DROPPED)
            if is_done:
                self._rest()
                self._tell()
            else:
                self._idle.clear()
                self._turn = asyncio.get_running_loop().call_soon(self._go_on)
        except Exception as e:
            log.error("%s", self._no_longer_read, exc_info=e)
            self._has_failed = True
            self._stop()
            self.follower.lost()
            self._tell()

    def _do(self) -> bool:
        """Return whether nothing waits any more; False: it is the turn of others."""
        apply, note, clock, stream = self._index.apply, self.removals.note, self._clock, self.stream
        while self._steps is not None or self._waiting:
            if self._steps is None:
                self._steps = self._waiting.popleft()()
            for step in self._steps:
                if isinstance(step, Replay):
                    self._ask_for(step)
                    continue
                apply(step)
                now = clock()
                note(step, stream.last_seq, now)
                if now >= self._slice.end:
                    return False
            self._steps = None
            if clock() >= self._slice.end:
                return not self._waiting
        return True

    def _stop(self) -> None:
        """Do nothing more of what has happened."""
        if self._turn is not None:
            self._turn.cancel()
        self._waiting.clear()
        self._steps = None
        self._rest()

    def _rest(self) -> None:
        """There is nothing to do."""
        self._is_busy = False
        if not self._idle.is_set():  # to set it takes longer than to look
            self._idle.set()
            held, self._held = self._held, []
            for connection in held:
                connection.release()

    def _tell(self) -> None:
        """Tell the fleet of the state, if it is another."""
        state = self.state
        if state is not self._told_state:
            self._told_state = state
            if state.is_settled:
                self._ended_in(SnapshotProof.PROVEN)
            if self._on_state is not None:
                self._on_state()

    def _ended_in(self, proof: SnapshotProof) -> None:
        """What was loaded from the snapshot is proven or dropped."""
        if self._snapshot is not None:
            self._snapshot.ended_in(proof)

    def _warn(self, reason: str, message: str) -> None:
        """Counted each time, in the log once."""
        log.warning(
            "engine %s sent what we cannot use (%s), skipped and counted from now on: %s",
            self._name,
            reason,
            message,
        )


async def give_back(blocks: EngineBlocks) -> None:
    """Forget the blocks of a holder that nobody follows any more, and free their memory in slices:
    600,000 of them at once would hold the event loop for 70 ms."""
    blocks.forget()
    slice_ = TimeSlice()
    while blocks.sweep(_FREED_BLOCKS):
        if slice_.is_over:
            await slice_.rest()
