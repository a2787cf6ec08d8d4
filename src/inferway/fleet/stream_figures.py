"""Figures of an event stream, for those who show it or judge it; and the part of `state_dir` that
the stream sees, which loads the snapshot of its holder and asks it for others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec
from msgspec import Struct

from inferway.kv.events.event_applier import EventApplierStats
from inferway.kv.events.holder_snapshot import HolderSnapshot, SavedHolder
from inferway.kv.events.holder_state import ApplyStats
from inferway.kv.events.stream import StreamStats
from inferway.model import TokenIds


class SnapshotProof(StrEnum):
    """The state of the proof that the engine is still the process that a snapshot was taken of."""

    NONE = "none"  # there was no snapshot
    PENDING = "pending"
    PROVEN = "proven"
    DROPPED = "dropped"


class SnapshotFigures(Struct, frozen=True):
    """The figures of the snapshot that a stream began with."""

    proof: SnapshotProof = SnapshotProof.NONE
    loaded_blocks: int = 0
    load_seconds: float = 0.0


class StreamFigures(Struct, frozen=True, array_like=True):
    """The figures of one stream. The counters are the stream's own, with which it goes on."""

    stats: EventApplierStats
    stream: StreamStats
    blocks: ApplyStats
    from_start: bool = False
    last_seq: int | None = None
    last_batch_at: float | None = None  # by the clock of the machine's monotonic time
    topic: str | None = None  # of the last message, whatever it was
    copies_count: bool = True
    num_orphans: int = 0
    caches: tuple[str, ...] = ()  # the kinds of its groups of KV caches, if there are several
    unplaced: tuple[str, ...] = ()  # the kinds that hold blocks of which it is not known where
    snapshot: SnapshotFigures | None = None


@dataclass(frozen=True, slots=True)
class StreamEvidence:
    """The evidence that one engine's event stream has brought so far."""

    engine: str = ""
    connected: bool = False  # an event socket is known and open
    batches: int = 0
    stored_blocks: int = 0
    skipped: int = 0  # events that could not be used
    block_size: int | None = None  # by hand or from its metrics
    block_size_seen: int | None = None  # in the engine's own events
    topic: str | None = None  # of its last message
    first_tokens: TokenIds | None = None  # of a block without a parent, as an event carried it


class Stream(Protocol):
    """An event stream of which snapshots are taken (`subscriber.EventSubscriber`)."""

    @property
    def num_changes(self) -> int:
        """A number that is another one once there is something new to keep."""

    @property
    def losses(self) -> tuple[int, int]:
        """The number of times that all blocks were dropped, and the number of blocks that the index
        has dropped for want of room. The engine's replay does not tell them."""

    async def take_snapshot(self) -> HolderSnapshot | None:
        """Return a snapshot as of the last batch; None if there is nothing to keep."""

    async def restore(self, saved: SavedHolder) -> int:
        """Have what a snapshot has, and return how many blocks that are."""

    def count_no_copies(self) -> None:
        """Let any removal remove a block from here on."""


class StreamSnapshot:
    """The part of the directory that one stream sees: `load`, then the directory asks the stream
    for snapshots until `close`."""

    def __init__(
        self,
        load: Callable[[Stream], Awaitable[SnapshotFigures]],
        close: Callable[[Stream], object],
        count_no_copies: Callable[[], None],
    ) -> None:
        """`load` has the stream begin with what was kept of its holder, before the link is up.
        `close` may be called twice. `count_no_copies` tells the next start that copies of the
        holder's blocks are not counted."""
        self.figures = SnapshotFigures()
        self.close = close
        self.count_no_copies = count_no_copies
        self._load = load

    async def load(self, stream: Stream) -> None:
        self.figures = await self._load(stream)

    def ended_in(self, proof: SnapshotProof) -> None:
        """Take note of what became of the blocks that were loaded."""
        if self.figures.proof is SnapshotProof.PENDING:
            self.figures = msgspec.structs.replace(self.figures, proof=proof)
