"""One holder's journal: loaded when its engine is found, then written behind each batch.

What is loaded is stale: what the engine held when we last heard of it. The event stream's next
resume asks for a replay from the journal's last batch inclusive, and its digest decides: the same
life of the engine goes on from there, of another one everything is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec

from inferway.errors import JournalError
from inferway.fleet.journal.compaction import CompactionJob, Compactor, in_pieces
from inferway.fleet.journal.journal_files import (
    FORMAT,
    Header,
    History,
    Identity,
    JournalFiles,
    Position,
    decode_record,
    encode_entry,
    encode_header,
    encode_record,
    frame,
    recover,
)
from inferway.fleet.journal.writer import Tail, Writer
from inferway.kv.events.event_applier import EventApplier
from inferway.kv.events.records import ClearedRecord, Record, Uncounted
from inferway.kv.events.stream import StreamState
from inferway.kv.index.protocol import Applies
from inferway.tasks import TimeSlice

log = logging.getLogger("inferway.journal")

SNAPSHOT_BYTES_PER_BLOCK = 20
COMPACT_FACTOR = 4  # so many times what a snapshot would take, then one is written
COMPACT_MIN_BYTES = 8 * 1024 * 1024
GIVE_UP_FACTOR = 8  # and so many times that, if it cannot be written
MAX_FILES = 64  # each start begins a new one


class EngineContinuity(StrEnum):
    """What is known of whether the engine is still in the life that the journal tells of."""

    NONE = "none"  # nothing was loaded
    PENDING = "pending"
    PROVEN = "proven"
    DROPPED = "dropped"


_PENDING, _EXACT = (
    EngineContinuity.PENDING,
    StreamState.EXACT,
)  # an enum's member takes 0.2 µs to be found


@dataclass(slots=True)
class JournalStats:
    """Plain numbers, read when somebody scrapes."""

    batches: int = 0  # written
    bytes: int = 0  # written
    compactions: int = 0
    compact_seconds: float = 0.0
    failed_compactions: int = 0
    loaded_blocks: int = 0
    load_seconds: float = 0.0
    given_up: bool = False


class JournalFigures(msgspec.Struct, frozen=True, array_like=True):
    """What is shown of a journal, whatever process writes it."""

    proof: EngineContinuity
    stats: JournalStats
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Workers:
    """The writer and the compactor that all journals of a directory share."""

    writer: Writer
    compactor: Compactor
    turn: asyncio.Lock  # one is loaded at a time: each holds the event loop for a slice
    compact_min_bytes: int = COMPACT_MIN_BYTES


class HolderJournal:
    """`load`, then `record` and `batch_done` for what happens, then `close`; all on the event
    loop. Never raises and never waits for a disk: without a journal everything works as well."""

    def __init__(
        self, directory: Path, identity: Identity, workers: Workers, lock: threading.Lock
    ) -> None:
        self.stats = JournalStats()
        self.engine = identity.engine
        self._directory = directory
        self._identity = identity
        self._workers = workers
        self._lock = lock
        self._tail = Tail(directory, identity.engine)
        self._follower: EventApplier | None = None
        self._is_open = False
        self._position: Position | None = None
        self._pending: list[msgspec.Raw] = []  # of the batch that is being applied
        self._number = 0  # of the file that is written
        self._chain = 0
        self._kept_bytes = 0  # on disk
        self._compact_at = workers.compact_min_bytes
        self._many_files = False
        self._compacting = False
        self._proof = EngineContinuity.NONE

    @property
    def proof(self) -> EngineContinuity:
        if (
            self._proof is EngineContinuity.PENDING
            and self._follower is not None
            and self._follower.state.is_settled
        ):
            self._proof = EngineContinuity.PROVEN
        return self._proof

    @property
    def figures(self) -> JournalFigures:
        """What is shown of it. Its size is that of its files, with what is on the way there."""
        return JournalFigures(self.proof, self.stats, self._kept_bytes)

    # loading

    async def load(self, follower: EventApplier, index: Applies) -> None:
        """Bring `follower`, which has seen nothing yet, and `index` to where the journal ends;
        call it before the link is up. From then on what happens is written."""
        self._follower = follower
        try:
            async with self._workers.turn:
                kept = await self._load(follower, index)
        except OSError as e:
            log.error("engine %s: no journal in this run: %s", self.engine, e)
            index.apply(follower.blocks.forget())  # half a journal is of no use
            self.stats.given_up = True
            return
        self._chain, self._kept_bytes = kept.chain, kept.num_bytes
        if len(kept.files) > MAX_FILES:
            self._many_files, self._compact_at = True, 0
        self._is_open = True
        self._workers.writer.add(self._tail)
        self._begin(kept.number + 1)
        if not follower.blocks.copies_count:
            self.record(Uncounted())  # it may have been so before there was a file to say it in

    async def _load(self, follower: EventApplier, index: Applies) -> JournalFiles:
        began = time.monotonic()
        kept = await self._recover(self._identity)
        if kept.refused is not None:
            log.warning("engine %s: its journal is not used: %s", self.engine, kept.refused)
        try:
            position = await self._redo(kept, follower, index)
        except (JournalError, msgspec.DecodeError, TypeError) as e:
            log.error("engine %s: its journal is not used: %s", self.engine, e)
            index.apply(follower.blocks.forget())
            return await self._recover(None)
        if position is not None:
            follower.restore(position.seq, position.digest, position.is_exact)
            self._position, self._proof = position, EngineContinuity.PENDING
            self.stats.loaded_blocks = follower.blocks.num_blocks
            self.stats.load_seconds = time.monotonic() - began
            log.info(
                "engine %s: %d blocks from its journal in %.1f s; stale until it proves them",
                self.engine,
                self.stats.loaded_blocks,
                self.stats.load_seconds,
            )
        return kept

    async def _recover(self, identity: Identity | None) -> JournalFiles:
        def recovered() -> JournalFiles:
            with self._lock:
                return recover(self._directory, identity)

        return await asyncio.to_thread(recovered)

    async def _redo(
        self, kept: JournalFiles, follower: EventApplier, index: Applies
    ) -> Position | None:
        """Where the journal ends. Raises JournalError, msgspec.DecodeError, TypeError, OSError."""
        history = History(kept.files)
        slice_ = TimeSlice()
        async for record in _records(history):
            index.apply(follower.blocks.apply_record(record))
            if slice_.is_over:
                await slice_.rest()
        return history.position

    # writing

    def record(self, record: Record) -> None:
        """Take a record of the batch that is being applied, or of what happens between two."""
        if not self._is_open:
            return
        if isinstance(record, Uncounted) and self._position is not None:
            # At once and out of turn: the engine will now be asked to report blocks again, and
            # who does not know that would count those as copies.
            self._write(encode_entry(self._position, [encode_record(record)]))
            return
        if isinstance(record, ClearedRecord) and self.proof is EngineContinuity.PENDING:
            self._proof = EngineContinuity.DROPPED
        self._pending.append(encode_record(record))

    def batch_done(self, seq: int, digest: bytes, state: StreamState) -> None:
        """Tell that all records of a batch have been given."""
        if not self._is_open:
            return
        if self._proof is _PENDING:
            self._proof = EngineContinuity.PROVEN
        records, self._pending = self._pending, []
        self._position = Position(seq, digest, state is _EXACT)
        self._write(encode_entry(self._position, records))
        self.stats.batches += 1
        if self._kept_bytes > self._compact_at and not self._compacting:
            self._compact_if_worth_it()

    async def flush(self) -> None:
        """Return when what happened until now is in the file."""
        await self._workers.writer.flush(self._tail)

    async def close(self) -> None:
        """Return when everything is in its file. It may be called twice. What belongs to a batch
        that was not done is left out: the replay brings it whole."""
        if not self._is_open:
            return
        self._is_open = False
        await self._workers.writer.remove(self._tail)

    def _write(self, payload: bytes) -> None:
        data, self._chain = frame(payload, self._chain)
        if self._tail.failed:
            self._give_up()
        elif not self._workers.writer.write(self._tail, data):
            log.error(
                "engine %s: its journal ends here for this run: the disk is too slow for it; the "
                "next start goes on from there if the engine still can",
                self.engine,
            )
            self._give_up()
        else:
            self.stats.bytes += len(data)
            self._kept_bytes += len(data)

    def _give_up(self) -> None:
        self._is_open = False
        self._pending = []
        self.stats.given_up = True
        self._workers.writer.do(self._tail, self._tail.close)

    def _begin(self, number: int) -> None:
        self._number = number
        self._workers.writer.do(self._tail, partial(self._tail.begin, number))
        self._write(encode_header(Header(FORMAT, number, self._identity)))

    # compaction

    def _compact_if_worth_it(self) -> None:
        worth_it = self._worth_it()
        if self._kept_bytes <= worth_it and not self._many_files:
            self._compact_at = worth_it
            return
        self._compacting = True
        loop = asyncio.get_running_loop()
        before = self._kept_bytes

        def done(num_bytes: int | None, seconds: float) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._compacted, before, num_bytes, seconds)

        job = CompactionJob(
            self.engine, self._directory, self._number, self._lock, lambda: self._is_open, done
        )
        self._begin(self._number + 1)
        self._workers.writer.do(self._tail, partial(self._workers.compactor.put, job))

    def _worth_it(self) -> int:
        """From how many bytes on a snapshot saves enough."""
        assert self._follower is not None
        snapshot = SNAPSHOT_BYTES_PER_BLOCK * self._follower.blocks.num_blocks
        return max(self._workers.compact_min_bytes, COMPACT_FACTOR * snapshot)

    def _compacted(self, before: int, num_bytes: int | None, seconds: float) -> None:
        """Of `before` bytes, a snapshot of `num_bytes` is left; None: nothing has changed."""
        self._compacting = False
        self.stats.compact_seconds += seconds
        if num_bytes is None:
            self._not_compacted()
            return
        self.stats.compactions += 1
        self._kept_bytes += num_bytes - before
        self._many_files, self._compact_at = False, self._workers.compact_min_bytes

    def _not_compacted(self) -> None:
        self.stats.failed_compactions += 1
        self._compact_at = 2 * self._kept_bytes
        if self._is_open and self._kept_bytes > GIVE_UP_FACTOR * self._worth_it():
            log.error(
                "engine %s: its journal ends here for this run: it cannot be compacted, and has "
                "%d bytes",
                self.engine,
                self._kept_bytes,
            )
            self._give_up()


async def _records(history: History) -> AsyncIterator[Record]:
    """All records, small ones. A thread reads the files piece by piece. Raises as `History`."""
    pieces = history.pieces()
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        for raw in history.entries(*piece):
            for record in in_pieces(decode_record(raw)):
                yield record
