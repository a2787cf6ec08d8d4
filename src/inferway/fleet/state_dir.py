"""`--state-dir`: what is known of the engines' caches outlives the gateway.

    DIR/lock         locked by the gateway that uses the directory
    DIR/snapshot     the snapshots of all holders (`snapshot_file`)
    DIR/uncounted    holders whose copies are not counted, one a line

Once a minute, and at the end, each event stream makes a snapshot between two batches, in slices of
a millisecond; a thread writes them all to a new file. A stream that is followed anew has its
holder's snapshot first. It is stale then: the stream's resume asks for a replay from the snapshot's
last batch on, and only if the engine brings that batch unchanged is it still the same process.

That copies are not counted any more is written at once, because the reports that follow would count
as copies for whoever goes on from an older snapshot (`EngineBlocks.count_no_copies`).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import msgspec
import numpy as np

from inferway.errors import ConfigError, SnapshotError
from inferway.fleet.snapshot_file import (
    Identity,
    Sections,
    read_section,
    read_sections,
    write_snapshots,
)
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.holder_snapshot import BlockParents, HolderSnapshot, SavedHolder
from inferway.metrics import Family, counter, gauge
from inferway.tasks import Tasks, TimeSlice

log = logging.getLogger("inferway.snapshot")

SNAPSHOT_SECONDS = 60.0
PAUSE_FACTOR = 30  # so many times what a snapshot took, if that is longer
KEEP_SECONDS = 3600.0  # for a holder that is not there, since its snapshot was taken
CLOSE_SECONDS = 20.0  # for the last snapshot
_JOURNAL = re.compile(r"\d{8}\.(journal|snapshot)(\.tmp)?")  # of versions before this one


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

    async def take_snapshot(self) -> HolderSnapshot | None:
        """Return a snapshot as of the last batch; None if there is nothing to keep."""

    async def restore(self, saved: SavedHolder) -> int:
        """Have what a snapshot has, and return how many blocks that are."""

    def count_no_copies(self) -> None:
        """Let any removal remove a block from here on."""


class StreamSnapshot:
    """One stream's part in the snapshot: `load`, then the directory asks the stream for snapshots
    until `close`."""

    def __init__(self, state_dir: StateDir, name: str, identity: Identity) -> None:
        self.name = name
        self.identity = identity
        self.figures = SnapshotFigures()
        self._state_dir = state_dir

    async def load(self, stream: Stream) -> None:
        """Have the stream begin with what was kept of its holder; call it before the link is up."""
        state_dir = self._state_dir
        async with state_dir.turn:
            if state_dir.is_uncounted(self.name):
                stream.count_no_copies()
            began = time.monotonic()
            saved = await state_dir.saved(self.name, self.identity)
            if saved is not None:
                num_blocks = await stream.restore(saved)
                seconds = time.monotonic() - began
                self.figures = SnapshotFigures(SnapshotProof.PENDING, num_blocks, seconds)
                log.info(
                    "engine %s: %d blocks from the snapshot in %.1f s; stale until it proves them",
                    *(self.name, num_blocks, seconds),
                )
        state_dir.followed[self] = stream

    def close(self) -> None:
        """Take no more snapshots of the stream. It may be called twice."""
        self._state_dir.followed.pop(self, None)

    def count_no_copies(self) -> None:
        """Tell the next start that copies of the holder's blocks are not counted."""
        self._state_dir.note_uncounted(self.name)

    def ended_in(self, proof: SnapshotProof) -> None:
        """Take note of what became of the blocks that were loaded."""
        if self.figures.proof is SnapshotProof.PENDING:
            self.figures = msgspec.structs.replace(self.figures, proof=proof)


@dataclass(slots=True)
class _Stats:
    """Plain numbers, read when somebody scrapes."""

    written: int = 0
    failed: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    is_failing: bool = False


class StateDir:
    """`open`, then `stream` for each stream, then `close` while they are still followed. Without a
    path nothing is kept."""

    def __init__(
        self,
        path: Path | None,
        links: Callable[[], Iterator[bytes]],
        *,
        seconds: float = SNAPSHOT_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`links`: of the index that the streams write (`MemoryIndex.links`). `clock`: seconds
        since 1970."""
        self.followed: dict[StreamSnapshot, Stream] = {}
        self.turn = asyncio.Lock()  # one is loaded at a time: each holds the event loop for a slice
        self._path = path
        self._links = links
        self._seconds = seconds
        self._clock = clock
        self._stats = _Stats()
        self._lock: int | None = None
        self._sections: Sections = {}
        self._uncounted: set[str] = set()
        self._kept: dict[StreamSnapshot, int] = {}  # the changes that the file has
        self._writing = asyncio.Lock()
        self._tasks = Tasks(log, "no more snapshots are taken, by a fault of the gateway")

    def open(self) -> None:
        """Lock the directory, and begin to take snapshots. Raises ConfigError if we may not write
        there, or another gateway does."""
        if self._path is None:
            return
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(self._path, os.W_OK | os.X_OK):
                raise PermissionError(13, "permission denied")
            self._lock = _locked(self._path / "lock")
            _remove_journals(self._path)
            self._sections = self._read()
            with suppress(FileNotFoundError):
                self._uncounted = set((self._path / "uncounted").read_text().split())
        except OSError as e:
            why = (e.strerror or str(e)).lower()
            raise ConfigError(
                f"state_dir {str(self._path)!r}: cannot be written: {why}; make it a directory "
                "of the gateway's user, or leave it out"
            ) from e
        self._tasks.spawn(self._write_again_and_again())

    def stream(self, name: str, model: str) -> StreamSnapshot | None:
        """Return the part of one holder's stream, whose engine says that it serves this model. None
        without a directory."""
        if self._lock is None:
            return None
        return StreamSnapshot(self, name, Identity(model, _sample_key()))

    async def close(self) -> None:
        """Take the last snapshot, and unlock the directory. It may be called twice."""
        if self._lock is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS), self._writing:
                await self._tasks.close()
                await self._write()
        except TimeoutError:
            log.error("the last snapshot was not written within %g s", CLOSE_SECONDS)
        os.close(self._lock)
        self._lock = None

    # what was kept

    async def saved(self, name: str, identity: Identity) -> SavedHolder | None:
        """Return what was kept of a holder; None if that is nothing, or of no use."""
        section = self._sections.get(name)
        if section is None or self._path is None:
            return None
        was, now = (msgspec.structs.asdict(each) for each in (section.identity, identity))
        for key in (key for key in now if was[key] != now[key]):
            log.warning(
                "engine %s: its snapshot is not used: it was taken for %s %r, and now it is %r",
                *(name, key, was[key], now[key]),
            )
            return None
        path = self._path / "snapshot"
        try:
            return await asyncio.to_thread(lambda: SavedHolder(read_section(path, section)))
        except (OSError, SnapshotError, ValueError) as e:
            log.error("engine %s: its snapshot is not used: %s", name, e)
            return None

    def is_uncounted(self, name: str) -> bool:
        """Return whether copies of a holder's blocks are not counted."""
        return quote(name, safe="") in self._uncounted

    def note_uncounted(self, name: str) -> None:
        """Write down at once that copies of a holder's blocks are not counted any more."""
        if self._path is None or self.is_uncounted(name):
            return
        self._uncounted.add(quote(name, safe=""))
        path = self._path / "uncounted"
        try:
            path.touch(mode=0o600)
            with path.open("a") as file:
                file.write(quote(name, safe="") + "\n")
        except OSError as e:
            log.error("state_dir: it cannot be kept that copies of %s are not counted: %s", name, e)

    def _read(self) -> Sections:
        assert self._path is not None
        try:
            return read_sections(self._path / "snapshot")
        except (OSError, SnapshotError) as e:
            log.error("no snapshot is used: %s", e)
            return {}

    # what is kept

    async def _write_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(max(self._seconds, PAUSE_FACTOR * self._stats.seconds))
            async with self._writing:
                await self._write()

    async def _write(self) -> None:
        """Take and write snapshots of all streams, if there is something new to keep."""
        changes = {each: stream.num_changes for each, stream in self.followed.items()}
        if self._path is None or changes == self._kept:
            return
        began = time.monotonic()
        taken = [
            (each.name, each.identity, snapshot)
            for each, stream in list(self.followed.items())
            if (snapshot := await stream.take_snapshot()) is not None
        ]
        links = await self._all_links()
        names, now = {name for name, _, _ in taken}, self._clock()
        others = {
            name: section
            for name, section in self._sections.items()
            if name not in names and section.written_at > now - KEEP_SECONDS
        }
        path, stats = self._path / "snapshot", self._stats
        try:
            self._sections = await asyncio.to_thread(
                lambda: write_snapshots(path, taken, now, BlockParents(links).added_to, others)
            )
            stats.num_bytes = path.stat().st_size
        except OSError as e:
            if not stats.is_failing:
                log.error("the snapshot cannot be written: %s; the one before it stays", e)
            stats.failed += 1
            stats.is_failing = True
            return
        stats.written += 1
        stats.is_failing = False
        stats.seconds = time.monotonic() - began
        self._kept = changes

    async def _all_links(self) -> bytes:
        links, slice_ = [], TimeSlice()
        for rows in self._links():
            links.append(rows)
            if slice_.is_over:
                await slice_.rest()
        return b"".join(links)

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows; without a path it has no values."""
        stats, is_open = self._stats, self._path is not None
        outcomes = {("done",): stats.written, ("failed",): stats.failed}
        yield counter(
            "snapshots",
            "Times that the snapshot of all engines' caches was written, by outcome: done or"
            " failed.",
            ["outcome"],
            outcomes if is_open else {},
        )
        yield gauge(
            "snapshot_failing",
            "1 if the last snapshot could not be written, because the disk is full or not"
            " writable; else 0.",
            values={(): stats.is_failing} if is_open else {},
        )
        yield gauge(
            "snapshot_bytes",
            "Bytes of the snapshot file.",
            values={(): stats.num_bytes} if is_open else {},
        )
        yield gauge(
            "snapshot_write_seconds",
            "Seconds that the last snapshot took.",
            values={(): stats.seconds} if is_open else {},
        )


def _remove_journals(path: Path) -> None:
    """Remove what versions before this one kept."""
    removed = 0
    for journal in path.glob("*/*"):
        if _JOURNAL.fullmatch(journal.name):
            journal.unlink()
            removed += 1
            with suppress(OSError):  # it has other files
                journal.parent.rmdir()
    if removed:
        log.info("state_dir: removed %d journals that an older version had written", removed)


def _locked(path: Path) -> int:
    """The open file. Held by whoever has it open; a crash lets go of it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(file, 20, 0).decode(errors="replace").strip()
        os.close(file)
        raise ConfigError(
            f"state_dir {str(path.parent)!r}: the gateway with process id {owner} uses it; "
            "give each gateway a directory of its own"
        ) from None
    os.ftruncate(file, 0)
    os.write(file, b"%d\n" % os.getpid())
    return file


def _sample_key() -> str:
    """Another one when keys are made in another way, or with another seed."""
    [key] = BlockHasher(16).keys(np.arange(16, dtype=np.uint32))
    return f"{key:016x}"
