"""`--state-dir`: what is known of the engines' caches outlives the gateway.

    DIR/lock             locked by the gateway that uses the directory
    DIR/NAME.snapshot    what a holder has
    DIR/uncounted        holders whose copies are not counted, one a line
    DIR/verdicts.sqlite  verdicts on shapes (inferway_structured.verdict_store)

    snapshot = MAGIC | checksum of the rest | length of the identity | identity | HolderSnapshot

Once a minute, and at the end, each event stream with something new makes a snapshot between two
batches, in slices of a millisecond; a thread writes it to a new file, which gets the name when it
is complete. The checksum tells a file that is torn all the same, or was changed. A stream that is
followed anew has its holder's snapshot first. It is stale then: the stream's resume asks for a
replay from the snapshot's last batch on, and only if the engine brings that batch unchanged is it
still the same process.

That copies are not counted any more is written at once, because the reports that follow would count
as copies for whoever goes on from an older snapshot (`EngineBlocks.count_no_copies`).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import msgspec
import numpy as np
import xxhash

from inferway.errors import ConfigError, SnapshotError
from inferway.fleet.stream_figures import SnapshotFigures, SnapshotProof, Stream, StreamSnapshot
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.holder_snapshot import BlockParents, HolderSnapshot, SavedHolder
from inferway.metrics import Family, counter, gauge
from inferway.tasks import Tasks, TimeSlice

log = logging.getLogger("inferway.snapshot")

SNAPSHOT_SECONDS = 60.0
PAUSE_FACTOR = 30  # so many times what a snapshot took, if that is longer
KEEP_SECONDS = 3600.0  # for a holder that is not there, since its snapshot was taken
CLOSE_SECONDS = 20.0  # for the last snapshot
MAGIC = b"inferway-state-4"  # the number is that of the format
_HEAD = struct.Struct("<16sQ")
_LENGTH = struct.Struct("<I")


class Identity(msgspec.Struct, frozen=True):
    """The facts that must be the same for a holder's snapshot to be of use."""

    model: str  # what its engine says it serves
    keys: str  # a key that changes when keys are made in another way, or with another seed


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
        self._path = path
        self._followed: dict[Stream, tuple[str, Identity]] = {}  # holder, and what it is
        self._turn = asyncio.Lock()  # one is loaded at a time: each holds the loop for a slice
        self._links = links
        self._seconds = seconds
        self._clock = clock
        self._stats = _Stats()
        self._lock: int | None = None
        self._uncounted: set[str] = set()
        self._kept: dict[Stream, int] = {}  # the changes that the file has
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
        load = partial(self._load, name, Identity(model, _sample_key()))
        return StreamSnapshot(load, self._no_longer, partial(self._note_uncounted, name))

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

    async def _load(self, name: str, identity: Identity, stream: Stream) -> SnapshotFigures:
        figures = SnapshotFigures()
        async with self._turn:
            if self._is_uncounted(name):
                stream.count_no_copies()
            began = time.monotonic()
            saved = await self._saved(name, identity)
            if saved is not None:
                num_blocks = await stream.restore(saved)
                seconds = time.monotonic() - began
                figures = SnapshotFigures(SnapshotProof.PENDING, num_blocks, seconds)
                log.info(
                    "engine %s: %d blocks from the snapshot in %.1f s; stale until it proves them",
                    *(name, num_blocks, seconds),
                )
        self._followed[stream] = name, identity
        return figures

    def _no_longer(self, stream: Stream) -> None:
        self._followed.pop(stream, None)
        self._kept.pop(stream, None)

    async def _saved(self, name: str, identity: Identity) -> SavedHolder | None:
        """What was kept of a holder; None if that is nothing, or of no use."""
        try:
            told, saved = await asyncio.to_thread(_read, self._file_of(name))
        except FileNotFoundError:
            return None
        except (OSError, SnapshotError, ValueError) as e:
            log.error("engine %s: its snapshot is not used: %s", name, e)
            return None
        was, now = msgspec.structs.asdict(told), msgspec.structs.asdict(identity)
        for key in (key for key in now if was[key] != now[key]):
            log.warning(
                "engine %s: its snapshot is not used: it was taken for %s %r, and now it is %r",
                *(name, key, was[key], now[key]),
            )
            return None
        return saved

    def _file_of(self, name: str) -> Path:
        assert self._path is not None
        return self._path / f"{quote(name, safe='')}.snapshot"

    def _is_uncounted(self, name: str) -> bool:
        """Whether copies of a holder's blocks are not counted."""
        return quote(name, safe="") in self._uncounted

    def _note_uncounted(self, name: str) -> None:
        """Write down at once that copies of a holder's blocks are not counted any more."""
        if self._path is None or self._is_uncounted(name):
            return
        self._uncounted.add(quote(name, safe=""))
        path = self._path / "uncounted"
        try:
            path.touch(mode=0o600)
            with path.open("a") as file:
                file.write(quote(name, safe="") + "\n")
        except OSError as e:
            log.error("state_dir: it cannot be kept that copies of %s are not counted: %s", name, e)

    # what is kept

    async def _write_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(max(self._seconds, PAUSE_FACTOR * self._stats.seconds))
            async with self._writing:
                await self._write()

    async def _write(self) -> None:
        """Take and write the snapshots of the streams with something new to keep."""
        changes = {
            stream: number
            for stream in self._followed
            if self._kept.get(stream) != (number := stream.num_changes)
        }
        if not changes:
            return
        began, stats = time.monotonic(), self._stats
        taken, links = await self._take(changes)
        try:
            there = {self._file_of(name) for name, _ in self._followed.values()}
            stats.num_bytes = await asyncio.to_thread(self._write_files, taken, links, there)
        except OSError as e:
            if not stats.is_failing:
                log.error("the snapshot cannot be written: %s; the one before it stays", e)
            stats.failed += 1
            stats.is_failing = True
            return
        stats.written += 1
        stats.is_failing = False
        stats.seconds = time.monotonic() - began
        followed = self._followed
        self._kept |= {each: number for each, number in changes.items() if each in followed}

    def _write_files(
        self,
        taken: Sequence[tuple[str, Identity, HolderSnapshot]],
        links: bytes,
        there: Set[Path],
    ) -> int:
        """Write the snapshots, each completed first, and remove old ones of holders that are not
        `there` any more. Return the bytes of all. Raises OSError."""
        assert self._path is not None
        parents = BlockParents(links)
        for name, identity, snapshot in taken:
            _write(self._file_of(name), identity, parents.added_to(snapshot))
        size, oldest = 0, self._clock() - KEEP_SECONDS
        for file in self._path.glob("*.snapshot"):
            status = file.stat()
            if file not in there and status.st_mtime < oldest:
                file.unlink()
            else:
                size += status.st_size
        return size

    async def _take(
        self, streams: Iterable[Stream]
    ) -> tuple[list[tuple[str, Identity, HolderSnapshot]], bytes]:
        """Return the snapshots of streams, and the links of all blocks. A stream that has dropped
        blocks meanwhile, as no replay will tell, is left out: their links are gone."""
        taken, losses = {}, {stream: stream.losses for stream in streams}
        for stream in losses:
            snapshot = await stream.take_snapshot()
            if snapshot is not None:
                taken[stream] = snapshot
        links = await self._all_links()
        kept = [
            (*self._followed[stream], snapshot)
            for stream, snapshot in taken.items()
            if stream in self._followed and stream.losses == losses[stream]
        ]
        return kept, links

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
            "Bytes of the snapshot of all engines' caches.",
            values={(): stats.num_bytes} if is_open else {},
        )
        yield gauge(
            "snapshot_write_seconds",
            "Seconds that the last snapshot took.",
            values={(): stats.seconds} if is_open else {},
        )


def _read(path: Path) -> tuple[Identity, SavedHolder]:
    """Raises SnapshotError for a file that is not whole or of another format, OSError."""
    whole = memoryview(path.read_bytes())
    head, body = whole[: _HEAD.size], whole[_HEAD.size :]
    if head != _HEAD.pack(MAGIC, xxhash.xxh3_64_intdigest(body)):
        raise SnapshotError(f"{path}: it is not whole, was changed, or is not of format {MAGIC!r}")
    begin = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    identity = msgspec.msgpack.decode(body[_LENGTH.size : begin], type=Identity)
    return identity, SavedHolder(bytes(body[begin:]))


def _write(path: Path, identity: Identity, snapshot: HolderSnapshot) -> None:
    """Raises OSError; then the old file is there as it was."""
    told = msgspec.msgpack.encode(identity)
    pieces = (_LENGTH.pack(len(told)), told, msgspec.msgpack.encode(snapshot))
    checksum = xxhash.xxh3_64()
    for piece in pieces:
        checksum.update(piece)
    new = path.with_suffix(".tmp")
    new.unlink(missing_ok=True)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(file, "wb") as opened:
            opened.writelines([_HEAD.pack(MAGIC, checksum.intdigest()), *pieces])
            opened.flush()
            os.fsync(file)  # else a loss of power may cost the old file as well
        new.rename(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


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
