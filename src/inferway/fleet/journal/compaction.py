"""Journals -> a snapshot, in a process of its own: the gateway's event loop has no part in it.

`python -m inferway.fleet.journal.compaction DIRECTORY NUMBER FILE` reads the newest snapshot in a
holder's directory and the journals after it up to NUMBER, which nobody writes any more, and
writes FILE. It changes nothing else: who started it (`Compactor`) gives the file its name
(`files.install`).

A snapshot is the same history without what cancelled out, in the order it came. First all records
are redone to see what is left (`kv.events.holder_state.HolderState`). Then they are gone through
again, and of each that gave blocks their keys only those blocks are kept that are left. So parents
come before children as they did, and a block whose parent is gone comes with that parent's key, and
is detached again. What memory it takes depends on the blocks that are left."""

from __future__ import annotations

import itertools
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from inferway.errors import JournalError
from inferway.fleet.journal.journal_files import (
    FORMAT,
    Covered,
    Header,
    History,
    Position,
    encode_entry,
    encode_record,
    files_up_to,
    install,
    snapshot_name,
    write_snapshot,
)
from inferway.fleet.journal.writer import CLOSE_SECONDS
from inferway.kv.events.hash_to_key import Place
from inferway.kv.events.holder_state import ApplyStats, HolderState
from inferway.kv.events.records import (
    AdoptedRecord,
    BlockSize,
    ClearedRecord,
    KnownRecord,
    LaidOutRecord,
    PlacedRecord,
    Record,
    RemovedRecord,
    StoredRecord,
    TierNamed,
    Uncounted,
    WaitingRecord,
)
from inferway.kv.index.protocol import FULL_ATTENTION, GPU, STORAGE
from inferway.model import BlockKey, HolderId

log = logging.getLogger("inferway.journal")

MAX_BLOCKS = 256  # in one record: they are redone in one piece
NICENESS = 10
_ENTRY_RECORDS = 16  # of a snapshot


# records -> fewer records; pure


class _NoIndex:
    """The holdings of blocks that no index has."""

    def held(self, *_: object) -> list[BlockKey]:
        return []

    def num_evicted(self, _: HolderId) -> int:
        return 0


def shortened(history: Iterable[Record], again: Iterable[Record]) -> Iterator[Record]:
    """Yield fewer records that come to the same. `history` and `again` are the same records."""
    held = HolderState(0, _NoIndex(), None, ApplyStats())
    for record in history:
        held.apply_record(record)
        if isinstance(record, ClearedRecord):
            held.bridge.sweep(sys.maxsize)
    yield from _kind(held)
    yield from _joined(_kept(held, again))
    yield from _joined(_waiting(held))
    if not held.bridge.counting:
        yield Uncounted()


def _kind(held: HolderState) -> Iterator[Record]:
    """What kind of engine it is."""
    if held.block_size is not None:
        yield BlockSize(held.block_size)
    if held.layout is not None:
        yield LaidOutRecord(held.layout)
    for name, tier in held.tiers.items():
        if name is not None and tier > STORAGE:
            yield TierNamed(name, tier)


def in_pieces(record: Record, max_blocks: int = MAX_BLOCKS) -> Iterator[Record]:
    """Yield records of so many blocks at most that say the same."""
    hashes: Sequence[int] = getattr(record, "hashes", ())
    if len(hashes) <= max_blocks:
        yield record
        return
    for start in range(0, len(hashes), max_blocks):
        end = start + max_blocks
        match record:
            case StoredRecord(_, keys, parent, tier):
                before = keys[start - 1] if start else parent
                yield StoredRecord(hashes[start:end], keys[start:end], before, tier)
            case AdoptedRecord(_, keys, parent):
                before = keys[start - 1] if start else parent
                yield AdoptedRecord(hashes[start:end], keys[start:end], before)
            case (
                KnownRecord(_, tier, group)
                | WaitingRecord(_, tier, group)
                | RemovedRecord(_, tier, group)
            ):
                yield type(record)(hashes[start:end], tier, group)


def _waiting(held: HolderState) -> Iterator[Record]:
    """Blocks without a key, oldest first."""
    for block_hash, tiers in held.orphans.tiers.items():
        for tier in tiers:
            yield WaitingRecord([block_hash], tier)
    for block_hash, places in held.deferred.items():
        for place in places:
            yield WaitingRecord([block_hash], *place)


def _kept(held: HolderState, records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        if isinstance(record, StoredRecord | AdoptedRecord):
            yield from _kept_of(held, record)
        elif isinstance(record, PlacedRecord):
            for (tier, group), copies in held.bridge.take(record.block_hash, record.key):
                again = replace(record, tier=tier, group=group)
                yield from [again] * copies


def _kept_of(held: HolderState, record: StoredRecord | AdoptedRecord) -> Iterator[Record]:
    """What is left of what a record told, if no record before has told it: stretches of its chain
    of which there are as many copies in the same places."""
    hashes, keys = record.hashes, record.keys
    lie = list(map(held.bridge.take, hashes, keys))
    start = 0
    for end in range(1, len(hashes) + 1):
        full = end - start == MAX_BLOCKS
        if end < len(hashes) and lie[end] == lie[start] and not full:
            continue
        if lie[start]:
            parent = keys[start - 1] if start else record.parent
            stored = StoredRecord(hashes[start:end], keys[start:end], parent)
            yield from _placed(stored, lie[start])
        start = end


def _placed(stored: StoredRecord, copies: Sequence[tuple[Place, int]]) -> Iterator[Record]:
    """`copies`: how many of each block there are, by place."""
    hashes = stored.hashes
    full = next((place for place, _ in copies if place[1] == FULL_ATTENTION), None)
    tier = full[0] if full else GPU
    yield StoredRecord(hashes, stored.keys, stored.parent, tier)
    for place, num in copies:
        yield from [KnownRecord(hashes, *place)] * (num - (place == full))
    if full is None:  # only a window has them: they were stored so that they have a key
        yield RemovedRecord(hashes, tier, FULL_ATTENTION)


def _joined(records: Iterable[Record]) -> Iterator[Record]:
    """Neighbours that say the same of more blocks are one record."""
    last: Record | None = None
    for record in records:
        both = None if last is None else _both(last, record)
        if both is None and last is not None:
            yield last
        last = both or record
    if last is not None:
        yield last


def _both(first: Record, second: Record) -> Record | None:
    """None: they do not go together."""
    match first, second:
        case StoredRecord(), StoredRecord():
            if (second.parent, second.tier) == (first.keys[-1], first.tier):
                hashes, keys = [*first.hashes, *second.hashes], [*first.keys, *second.keys]
                if len(hashes) <= MAX_BLOCKS:
                    return StoredRecord(hashes, keys, first.parent, first.tier)
        case (WaitingRecord(), WaitingRecord()) | (KnownRecord(), KnownRecord()):
            assert isinstance(first, WaitingRecord | KnownRecord)
            assert isinstance(second, WaitingRecord | KnownRecord)
            hashes = [*first.hashes, *second.hashes]
            is_same_place = (first.tier, first.group) == (second.tier, second.group)
            if is_same_place and len(hashes) <= MAX_BLOCKS:
                return type(first)(hashes, first.tier, first.group)
    return None


# the process


def compact(directory: Path, number: int, out: Path) -> None:
    """Write the snapshot `out` of a holder's files up to `number`. Raises JournalError if the files
    are not whole, OSError if they or `out` cannot be had."""
    files = files_up_to(directory, number)
    history = History(files)
    records = shortened(history.records(), History(files).records())
    first = next(records, None)  # the whole history has been read now
    header, position = history.header, history.position
    if header is None or header.number != number:
        raise JournalError(f"{directory}: there is no journal {number}")
    header = Header(FORMAT, number, header.identity, Covered(history.chain, position))
    entries: Iterator[bytes] = iter(())
    if position is not None and first is not None:
        entries = _entries(position, itertools.chain([first], records))
    write_snapshot(out, header, entries)


def _entries(position: Position, records: Iterable[Record]) -> Iterator[bytes]:
    piece: list[msgspec.Raw] = []
    for record in records:
        piece.append(encode_record(record))
        if len(piece) == _ENTRY_RECORDS:
            yield encode_entry(position, piece)
            piece = []
    if piece:
        yield encode_entry(position, piece)


def _step_back() -> None:
    """The gateway comes first: for the CPU, and if there is too little memory for both."""
    os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main(arguments: Sequence[str]) -> int:
    directory, number, out = arguments
    _step_back()
    try:
        compact(Path(directory), int(number), Path(out))
    except (JournalError, OSError, msgspec.DecodeError) as e:
        print(e, file=sys.stderr)
        return 1
    return 0


# who starts it


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """A holder's journals up to `number` are to become a snapshot. `done` is called by the
    compactor's thread, with the snapshot's size or None if there is none."""

    engine: str
    directory: Path
    number: int
    lock: threading.Lock  # who changes which files there are holds it
    is_wanted: Callable[[], bool]  # whether the journal goes on; asked under the lock
    done: Callable[[int | None, float], object]


class Compactor:
    """`put` from any thread; `close` ends what is under way, which then leaves nothing behind
    but a file that `files.recover` removes."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[CompactionJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal-compactor", daemon=True)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._closed = False

    def start(self) -> None:
        self._thread.start()

    def put(self, job: CompactionJob) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """Stop, and return when the thread has ended, if the disk lets it. It may be called
        twice."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.kill()
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    # the thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            began = time.monotonic()
            num_bytes: int | None = None
            try:
                num_bytes = self._compact(job)
            except OSError as e:
                log.error("engine %s: its journal cannot be compacted: %s", job.engine, e)
            job.done(num_bytes, time.monotonic() - began)

    def _compact(self, job: CompactionJob) -> int | None:
        out = job.directory / f"{snapshot_name(job.number)}.tmp"
        out.unlink(missing_ok=True)
        error = self._write(job, out)
        if error is not None:
            out.unlink(missing_ok=True)
            if not self._closed:
                log.error("engine %s: its journal cannot be compacted: %s", job.engine, error)
            return None
        with job.lock:
            if not job.is_wanted():
                out.unlink(missing_ok=True)
                return None
            size = out.stat().st_size
            for _ in install(job.directory, job.number, out):
                pass
        return size

    def _write(self, job: CompactionJob, out: Path) -> str | None:
        """Why there is no snapshot; None if there is one."""
        module = "inferway.fleet.journal.compaction"
        arguments = [str(job.directory), str(job.number), str(out)]
        with self._lock:
            if self._closed:
                return "closed"
            self._child = child = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                # Ctrl-C in the terminal is for us alone. No session of its own: while it has not
                # begun we wait for it with the GIL held, and niceness counts within a session.
                process_group=0,
            )
        _, errors = child.communicate()
        with self._lock:
            self._child = None
        if child.returncode == 0:
            return None
        return errors.strip().rpartition("\n")[2] or f"exit status {child.returncode}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
