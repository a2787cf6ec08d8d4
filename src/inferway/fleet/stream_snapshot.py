"""The part of `state_dir` that an event stream sees: it begins with the snapshot of its holder, and
is asked for snapshots until it is closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from inferway.kv.events.holder_snapshot import HolderSnapshot, SavedHolder


class SnapshotProof(StrEnum):
    """What is known of whether the engine is still the process that a snapshot was taken of."""

    NONE = "none"  # there was no snapshot
    PENDING = "pending"
    PROVEN = "proven"
    DROPPED = "dropped"


class SnapshotFigures(msgspec.Struct, frozen=True):
    """What is shown of the snapshot that a stream began with."""

    proof: SnapshotProof = SnapshotProof.NONE
    loaded_blocks: int = 0
    load_seconds: float = 0.0


class Stream(Protocol):
    """An event stream of which snapshots are taken (`subscriber.EventSubscriber`)."""

    @property
    def num_changes(self) -> int:
        """A number that is another one once there is something new to keep."""

    @property
    def losses(self) -> tuple[int, int]:
        """How often all that was believed was dropped, and how many blocks the index has dropped
        for want of room: what the engine's replay does not tell."""

    async def take_snapshot(self) -> HolderSnapshot | None:
        """Return a snapshot as of the last batch; None if there is nothing to keep."""

    async def restore(self, saved: SavedHolder) -> int:
        """Have what a snapshot has, and return how many blocks that are."""

    def count_no_copies(self) -> None:
        """Let any removal remove a block from here on."""


class StreamSnapshot:
    """One stream's part in the snapshot: `load`, then the directory asks the stream for snapshots
    until `close`."""

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
