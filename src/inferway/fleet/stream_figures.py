"""What an event stream has brought so far, for those who show it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from inferway.kv.events.event_applier import EventApplierStats
from inferway.kv.events.holder_state import ApplyStats
from inferway.kv.events.stream import StreamStats


class SnapshotProof(StrEnum):
    """What is known of whether the engine is still the process that a snapshot was taken of."""

    NONE = "none"  # there was no snapshot
    PENDING = "pending"
    PROVEN = "proven"
    DROPPED = "dropped"


class SnapshotFigures(Struct, frozen=True):
    """What is shown of the snapshot that a stream began with."""

    proof: SnapshotProof = SnapshotProof.NONE
    loaded_blocks: int = 0
    load_seconds: float = 0.0


class StreamFigures(Struct, frozen=True, array_like=True):
    """Of one stream. The counters are those that the stream goes on counting with."""

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
