"""One engine's events -> operations for the index: the order of batches (`stream`), their bytes
(`adapters`) and what they mean (`apply`) in one object. No socket, no clock, no index.

Whatever is handed in answers with steps, to be done in order, each before the next is taken:
operations for the index (those of one event, or of a piece of a long one, at a time, none while a
big batch is decoded: a place to give others a turn), or a Replay to ask the engine for.

What cannot be read. A batch that is unreadable, or has an unreadable event that may have said
that blocks are gone, is asked for again by a replay. If the engine really sends it so, all that
was believed up to that event is dropped, and what follows makes a partial picture. Other
unreadable events leave out blocks that are there: the picture becomes partial, and stays true.

Exact. What is believed is all that the engine holds only if every batch since its start was
applied, and nothing of them left out: no event that could not be read or is of a kind that is
not kept (`apply` skips it; blocks of other machines, "remote", are not the engine's), no block
whose parent is unknown, none that the index dropped for want of room, and no copy counted once
for twice (`copies_count`). When the engine drops everything (AllBlocksCleared), nothing older is
left to know and a partial picture is exact. But vLLM 0.32 says so of its GPU blocks alone and
keeps those it has offloaded (v1/core/block_pool.py; only `reset_connector` drops them, in the
same words). So with an engine that has named another medium the picture is partial after it; and
one that names its first afterwards may have had blocks there before.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from inferway.kv.events.adapters import sglang, vllm
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event import (
    SMALL_BYTES,
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    Event,
    EventAdapter,
    EventError,
    blocks_of,
)
from inferway.kv.events.groups import GPU_MEDIA
from inferway.kv.events.holder_snapshot import HolderSnapshot, Position, SavedHolder
from inferway.kv.events.orphans import MAX_ORPHANS
from inferway.kv.events.stream import Action, Apply, EventStream, Forget, Replay, StreamState
from inferway.kv.index.protocol import Holdings, Op

Step = list[Op] | Replay
Steps = Iterator[Step]
_Handler = Callable[[int, bytes, bool], list[Action]]  # of `EventStream`: live or replayed

_OF_BLOCKS = (BlockStored, BlockRemoved)  # for isinstance; a union is made anew at each call
_REMOVED_FROM = attrgetter("medium", "group_idx", "locality")  # of a BlockRemoved
_REMOVED = attrgetter("block_hashes")
_PIECE_BLOCKS = 512  # of an event applied at a time: half a millisecond
_FIRST_BATCHES, _THEN_ONE_IN = 8, 256  # looked through for fields that are not known
_NOT_MISSED = ("remote",)  # reasons of `apply` to skip what is not the engine's own


@dataclass(slots=True)
class EventApplierStats:
    """Plain integers, read when /metrics is scraped; more in `stream.stats`, `blocks.stats`."""

    batches: int = 0
    events: int = 0
    forgotten: int = 0  # times that all that was believed was dropped
    skipped: dict[str, int] = field(default_factory=dict)  # messages and events, by reason


class _Opened(Struct, frozen=True, gc=False):
    """A batch as it came, and what is in it."""

    payload: bytes
    batch: Batch


class EventApplier:
    """Keeps what is believed of one engine's cache true. One owner feeds it, nobody else.

    After each batch `on_batch` gets what was in it. `on_skip` is told the reason and the message of
    whatever is skipped, when a reason comes for the first time.
    """

    def __init__(
        self,
        blocks: EngineBlocks,
        *,
        adapter: EventAdapter = sglang.open_batch,
        can_replay: bool = True,
        holdings: Holdings | None = None,
        on_batch: Callable[[Batch], None] | None = None,
        on_skip: Callable[[str, str], None] | None = None,
        max_held_batches: int | None = None,
    ) -> None:
        self.blocks = blocks
        self._adapter = adapter
        self.stream = EventStream(can_replay=can_replay)
        if max_held_batches is not None:
            self.stream.max_held_batches = max_held_batches
        self.stats = EventApplierStats()
        self._holdings = holdings
        self._on_batch = on_batch
        self._on_skip = on_skip
        self._left_out = False  # something that was told is not in the picture
        self._num_lost = 0  # of `apply`, as last looked at
        self._other_medium = False
        self._began_by_clear = False

    @property
    def state(self) -> StreamState:
        state = self.stream.state
        return state if state is not StreamState.EXACT or self.is_whole else StreamState.PARTIAL

    @property
    def is_whole(self) -> bool:
        """True if everything that the engine holds is known once the stream is in step."""
        blocks = self.blocks
        if self._left_out or not self.stream.from_start or not blocks.copies_count:
            return False
        if blocks.has_waiting:
            return False
        return self._holdings is None or not self._holdings.num_evicted(self.blocks.holder)

    @property
    def position(self) -> Position | None:
        """The last batch that was applied, None if there is none, and whether the picture is exact
        as of it."""
        seq, digest = self.stream.last_seq, self.stream.digest
        return None if seq is None or digest is None else Position(seq, digest, self.is_whole)

    def take(self, taken: Callable[[HolderSnapshot], None]) -> Steps:
        """Give `taken` a snapshot as of the last batch, in steps to be done before another batch
        comes in; nothing if no batch was applied."""
        position = self.position
        if position is not None:
            taken((yield from self.blocks.take(position)))

    def restore(self, saved: SavedHolder) -> Steps:
        """Go on from a snapshot, before the link is up: what is believed is stale until the engine
        has proven it. Return what to do."""
        yield from self.blocks.restore(saved)
        position = saved.snapshot.position
        self.stream.restore(position.seq, position.digest, position.is_exact)
        self._num_lost = self._count_lost()
        self._began_by_clear = self._other_medium = True  # for all we know

    # what comes in

    def resume(self) -> Steps:
        """Tell that the link is new (`EventStream.resume`). Return what to do."""
        return self._do(self.stream.resume())

    def recheck(self) -> Steps:
        """Tell that what is believed is in doubt (`EventStream.recheck`). Return what to do."""
        return self._do(self.stream.recheck())

    def restarted(self) -> Steps:
        """Tell that the engine's process has ended, and another one is there
        (`EventStream.restarted`). Return what to do."""
        return self._do(self.stream.restarted())

    def cleared(self) -> Steps:
        """Tell that the engine has dropped all it held, before its event says so. Return what to
        do."""
        return self._apply_other(AllBlocksCleared(), is_last_life=True)

    def lost(self) -> None:
        """Tell that the link is gone (`EventStream.lost`)."""
        self.stream.lost()

    def live(self, seq: int, payload: bytes) -> Steps:
        """Take a batch that the engine has just published. Return what to do."""
        return self._came(self.stream.live, seq, payload)

    def replayed(self, seq: int, payload: bytes) -> Steps:
        """Take an answer to the last Replay. Return what to do."""
        return self._came(self.stream.replayed, seq, payload)

    def replay_ended(self, complete: bool) -> Steps:
        """Tell that no more answers come, `complete` if the end marker came. Return what to do."""
        return self._do(self.stream.replay_ended(complete))

    def skip(self, reason: str, message: str) -> None:
        """Count, and tell of, something that cannot be used."""
        if reason not in self.stats.skipped and self._on_skip is not None:
            self._on_skip(reason, message)
        self.stats.skipped[reason] = self.stats.skipped.get(reason, 0) + 1

    # what is done about it

    def _came(self, handler: _Handler, seq: int, payload: bytes) -> Steps:
        if len(payload) > SMALL_BYTES:
            return self._big_came(handler, seq, payload)
        batch = self._adapter(payload).decoded()
        actions = handler(seq, payload, batch.is_readable)
        if len(actions) == 1:  # nearly always
            action = actions[0]
            if isinstance(action, Apply) and action.payload is payload:
                return self._apply(action, batch)
        return self._do(actions, _Opened(payload, batch))

    def _big_came(self, handler: _Handler, seq: int, payload: bytes) -> Steps:
        opened = yield from self._open(payload)
        yield from self._do(handler(seq, payload, opened.batch.is_readable), opened)

    def _do(self, actions: Sequence[Action], opened: _Opened | None = None) -> Steps:
        """`opened`: the batch that has just come."""
        for i, action in enumerate(actions, 1):
            if isinstance(action, Apply):
                if opened is None or opened.payload is not action.payload:
                    opened = yield from self._open(action.payload)
                # False: what is done now is forgotten at once
                is_last_life = i == len(actions) or Forget() not in actions[i:]
                yield from self._apply(action, opened.batch, is_last_life)
            elif isinstance(action, Replay):
                yield action
            else:
                yield self._forget()

    def _open(self, payload: bytes) -> Generator[Step, None, _Opened]:
        raw = self._adapter(payload)
        if len(payload) <= SMALL_BYTES:
            return _Opened(payload, raw.decoded())
        items: list[Event | EventError] = []
        for item in raw.items:
            items.append(item)
            yield []
        return _Opened(payload, Batch(raw.ts, items, raw.rank))

    def _apply(self, action: Apply, batch: Batch, is_last_life: bool = True) -> Steps:
        """`batch` is what is in the action's payload."""
        items, apply = batch.items, self.blocks.apply
        before = self.blocks.expect(items)
        if before:
            yield before
        self.stats.events += len(items)
        for item in items if len(items) == 1 else runs(joined(items)):
            if isinstance(item, list):
                yield from self._apply_run(item)
            elif not isinstance(item, _OF_BLOCKS) or len(item.block_hashes) > _PIECE_BLOCKS:
                yield from self._apply_other(item, is_last_life)
            else:
                if item.medium not in GPU_MEDIA:
                    self._see_other_medium()
                yield apply(item)
        self._applied(action, batch)

    def _apply_run(self, events: Sequence[BlockStored | BlockRemoved]) -> Iterator[list[Op]]:
        ops = self.blocks.apply_together(events) if len(events) > 1 else None
        if ops is None:
            yield from map(self.blocks.apply, events)
        else:
            yield ops

    def _apply_other(self, item: Event | EventError, is_last_life: bool) -> Iterator[list[Op]]:
        """Apply a seldom item: a long event, an unreadable one, or AllBlocksCleared."""
        if isinstance(item, _OF_BLOCKS):
            if item.medium not in GPU_MEDIA:
                self._see_other_medium()
            if isinstance(item, BlockStored) and self.blocks.may_name_more_than_held(item):
                return  # its pieces do not begin with the prompt
            yield from map(self.blocks.apply, _pieces(item))
        elif isinstance(item, EventError):
            self.stats.events -= 1
            yield self._skipped(item)
        else:
            ops = self.blocks.apply(item)
            self._cleared(is_last_life)
            yield ops

    def _skipped(self, error: EventError) -> list[Op]:
        self.skip(error.reason, error.message)
        ops = self._forget() if error.may_remove else []
        self._left_out = True
        return ops

    def _applied(self, action: Apply, batch: Batch) -> None:
        """Count a batch that the index has."""
        self.stats.batches += 1
        self._look_for_losses()
        if self.stats.batches <= _FIRST_BATCHES or not self.stats.batches % _THEN_ONE_IN:
            self._look_for_news(action.payload)
        if self._on_batch is not None:
            self._on_batch(batch)

    def _forget(self) -> list[Op]:
        self.stats.forgotten += 1
        self._start_anew()
        self._began_by_clear = False
        return self.blocks.forget()

    # how true it is

    def _cleared(self, is_last_life: bool) -> None:
        self._start_anew()
        self._left_out = self._other_medium
        if is_last_life and not self.stream.from_start:
            self.stream.cleared()
            self._began_by_clear = True

    def _see_other_medium(self) -> None:
        if not self._other_medium:
            self._other_medium = True
            self._left_out |= self._began_by_clear

    def _start_anew(self) -> None:
        self._left_out = False
        self._num_lost = self._count_lost()

    def _look_for_news(self, payload: bytes) -> None:
        """A field that is newer than the gateway may say what is hashed into blocks."""
        if len(payload) > SMALL_BYTES:
            return
        for name in vllm.unknown_fields(payload):
            self.skip("unknown_field", f"its events have a field {name!r}, newer than this gateway")
            self._left_out = True

    def _look_for_losses(self) -> None:
        num_lost = self._count_lost()
        if num_lost != self._num_lost or self.blocks.num_awaited >= MAX_ORPHANS:
            self._num_lost = num_lost
            self._left_out = True

    def _count_lost(self) -> int:
        stats = self.blocks.stats
        lost = stats.orphans
        if stats.skipped:
            lost += sum(n for reason, n in stats.skipped.items() if reason not in _NOT_MISSED)
        return lost


def joined(items: Iterable[Event | EventError]) -> Iterator[Event | EventError]:
    """Yield what says the same: neighbours that remove blocks from the same place are one."""
    for kind, alike in groupby(items, type):
        if kind is not BlockRemoved:
            yield from alike
            continue
        for _, removed in groupby(alike, _REMOVED_FROM):
            some = list(removed)
            first = cast(BlockRemoved, some[0])
            if len(some) > 1:
                first = replace(first, block_hashes=[*chain.from_iterable(map(_REMOVED, some))])
            yield first


def runs(
    items: Iterable[Event | EventError],
) -> Iterator[Event | EventError | list[BlockStored | BlockRemoved]]:
    """Yield the items, neighbours that are about GPU memory as one list, if they have so few
    blocks that none takes long."""
    run: list[BlockStored | BlockRemoved] = []
    room = _PIECE_BLOCKS
    for item in items:
        if (
            not isinstance(item, _OF_BLOCKS)
            or item.medium not in GPU_MEDIA
            or len(item.block_hashes) > _PIECE_BLOCKS
        ):
            if run:
                yield run
                run, room = [], _PIECE_BLOCKS
            yield item
            continue
        num_blocks = len(item.block_hashes) or 1
        if num_blocks > room:
            yield run
            run, room = [], _PIECE_BLOCKS
        run.append(item)
        room -= num_blocks
    if run:
        yield run


def _pieces(event: BlockStored | BlockRemoved) -> Iterator[BlockStored | BlockRemoved]:
    hashes = event.block_hashes
    for start in range(0, len(hashes), _PIECE_BLOCKS):
        end = start + _PIECE_BLOCKS
        if isinstance(event, BlockStored):
            yield blocks_of(event, start, end)
        else:
            yield replace(event, block_hashes=hashes[start:end])
