"""The ring's new records -> files, in a thread. What is wrong with the disk ends it, with a line in
the log, and no request.

Every second what is new is handed to the thread, as bytes that it unpacks there. A file ends when
it is big or old enough; the oldest go when all are too big, or too old.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import logging
import os
import stat
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import BinaryIO

import msgspec
import numpy as np

from inferway import __version__
from inferway.config import RecordSettings
from inferway.errors import ConfigError
from inferway.model import BlockKey
from inferway_console.records.files import (
    FORMAT,
    PREFIX,
    SECRET,
    SUFFIX,
    Blocks,
    FileHeader,
    FleetLine,
    Line,
    RequestLine,
)
from inferway_console.records.fleet_lines import FleetLines
from inferway_console.records.recorder import Recorder
from inferway_console.records.ring import Page
from inferway_console.records.siphash import KEY_BYTES, siphash

log = logging.getLogger("inferway.records")

WRITE_SECONDS = 1.0
MOST_FILE = 64 * 1024 * 1024  # bytes: it is not to be lost whole
MOST_FILE_SECONDS = 3600.0
MOST_BLOCKS = 1_000_000  # that a file names: 100 MB of memory here
_FACTS = ("joined", "costs")
_PARTS = 8  # so many files at least, when they are as many as may be


class RecordFiles:
    """Files of one directory. Not for two threads at a time."""

    def __init__(
        self,
        settings: RecordSettings,
        policy: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is Unix time. Raises ConfigError if the directory cannot be used."""
        assert settings.directory is not None
        self.directory = Path(settings.directory)
        self._most_bytes, self._most_age = settings.max_bytes, settings.max_age
        self._most_file = min(MOST_FILE, settings.max_bytes // _PARTS)
        self._most_file_age = min(MOST_FILE_SECONDS, settings.max_age / _PARTS)
        self._policy = policy
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode
        self._raw: BinaryIO | None = None
        self._file: gzip.GzipFile | None = None
        self._began = 0.0
        self._ids: dict[BlockKey, int] = {}
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_link(self.directory)
            self._secret = _secret(self.directory / SECRET)
        except OSError as e:
            raise ConfigError(
                f"records.directory {str(self.directory)!r}: {(e.strerror or str(e)).lower()}; make"
                " it a directory of the gateway's user, or leave it out"
            ) from e

    def write(
        self,
        pages: Sequence[tuple[Page, int]],
        keys: Mapping[int, Sequence[BlockKey]],
        changes: Sequence[FleetLine],
        fleet: Sequence[FleetLine],
    ) -> None:
        """Write records, from a place of each page on, and what became of the fleet. `fleet`, as it
        is now, begins a file, if it is time for one. Raises OSError."""
        file = self._file or self._begin(fleet)
        for line in changes:
            self._write(file, line)
        for page, start in pages:
            for place, row in enumerate(page.rows()[start:], start):
                blocks = keys.get(page.first + place)
                named = None if blocks is None else self._named(blocks)
                self._write(file, RequestLine(page.record(row), named))
        file.flush()
        if self._is_full:
            self.close()
            self._delete_old()

    def close(self) -> None:
        """End the file. The next `write` begins another one. Raises OSError."""
        file, self._file = self._file, None
        raw, self._raw = self._raw, None
        self._ids.clear()
        try:
            if file is not None:
                file.close()
        finally:
            if raw is not None:
                raw.close()

    def abandon(self) -> None:
        """Let the file go, whatever of it is not written."""
        file, self._file = self._file, None
        raw, self._raw = self._raw, None
        self._ids.clear()
        for each in (file, raw):
            with suppress(OSError, ValueError):
                if each is not None:
                    each.close()

    @property
    def is_closed(self) -> bool:
        """True if the next `write` begins a file."""
        return self._file is None

    @property
    def _is_full(self) -> bool:
        assert self._raw is not None
        is_old = self._clock() - self._began >= self._most_file_age
        return is_old or self._raw.tell() >= self._most_file or len(self._ids) >= MOST_BLOCKS

    def _begin(self, fleet: Sequence[FleetLine]) -> gzip.GzipFile:
        self._began = self._clock()
        name = f"{PREFIX}{int(self._began * 1000):014d}-{token_hex(4)}{SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._raw = os.fdopen(os.open(self.directory / name, flags, 0o600), "wb")
        self._file = file = gzip.GzipFile(
            filename="", mode="wb", compresslevel=6, fileobj=self._raw
        )
        sizes = {line.block_size for line in fleet if line.block_size}
        salt = blake2b(self._secret, digest_size=8).hexdigest()
        self._write(
            file,
            FileHeader(FORMAT, self._began, __version__, tuple(sorted(sizes)), salt, self._policy),
        )
        for line in fleet:
            self._write(file, line)
        self._delete_old()
        return file

    def _write(self, file: gzip.GzipFile, line: Line) -> None:
        file.write(self._encode(line) + b"\n")

    def _named(self, keys: Sequence[BlockKey]) -> Blocks:
        """The prompt's blocks as the file has them. A key stands for all before it, too, so that
        those that are known are the first ones."""
        ids = self._ids
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if keys[middle] in ids else (low, middle)
        after = ids[keys[low - 1]] if low else -1
        new = keys[low:]
        if not new:
            return Blocks(after)
        for key in new:
            ids[key] = len(ids)
        hashes = siphash(self._secret, np.fromiter(new, np.uint64, len(new)))
        return Blocks(after, b64encode(hashes.astype("<u8").tobytes()).decode())

    def _delete_old(self) -> None:
        """The oldest, until what is left is neither too big nor too old."""
        found = []
        for path in sorted(self.directory.glob(f"{PREFIX}*{SUFFIX}"), reverse=True):
            with suppress(FileNotFoundError):  # another gateway may write here, too
                found.append((path, path.stat()))
        total = 0
        oldest = self._clock() - self._most_age
        for path, status in found[1:] if self._file is not None else found:
            total += status.st_size
            if total > self._most_bytes - self._most_file or status.st_mtime < oldest:
                path.unlink(missing_ok=True)


class RecordWriter:
    """`start` on the event loop, `close` at the end."""

    def __init__(
        self,
        files: RecordFiles,
        recorder: Recorder,
        fleet: FleetLines,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is Unix time."""
        self.failed = ""  # why it has ended; empty: it has not
        self._files = files
        self._recorder = recorder
        self._fleet = fleet
        self._clock = clock
        self._seq = recorder.ring.last_seq
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()  # one thread at a time

    @property
    def directory(self) -> Path:
        """The directory with the files."""
        return self._files.directory

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Write what is left, and end the file."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if not self.failed:
            await self.write()
            await self._try(self._files.close)

    async def _run(self) -> None:
        while not self.failed:
            await asyncio.shield(asyncio.ensure_future(self.write()))
            await asyncio.sleep(WRITE_SECONDS)

    async def write(self) -> None:
        """Write what is new."""
        async with self._lock:
            await self._write()

    async def _write(self) -> None:
        recorder, at = self._recorder, self._clock()
        changes = self._fleet.changes(at)
        fleet: list[FleetLine] = []
        if self._files.is_closed:  # then `fleet` says the same
            changes = [line for line in changes if line.event not in _FACTS]
            fleet = self._fleet.now(at)
        pages = recorder.ring.pages_since(self._seq)
        keys, recorder.keys = dict(recorder.keys), []
        if not pages and not changes and not fleet:
            return
        if pages:
            last, _ = pages[-1]
            self._seq = last.first + last.size - 1
        await self._try(partial(self._files.write, pages, keys, changes, fleet))

    async def _try(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except Exception as e:
            self.failed = (e.strerror if isinstance(e, OSError) else None) or str(e) or repr(e)
            await asyncio.to_thread(self._files.abandon)
            self._recorder.keeps_keys = False
            self._recorder.keys.clear()
            log.error("requests are no longer recorded in %s: %s", self._files.directory, e)


def _check_link(path: Path) -> None:
    """Raise OSError if the path is a symbolic link that another user has made, as anybody can in
    /tmp: what is written there would be written where that user says."""
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode) and info.st_uid not in (0, os.geteuid()):
        raise OSError(errno.ELOOP, "it is a symbolic link of another user")


def _secret(path: Path) -> bytes:
    """Read the secret, or make one. Raises OSError."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as known:
            secret = known.read(KEY_BYTES + 1)
        if len(secret) != KEY_BYTES:
            raise OSError(22, f"{path.name} has {len(secret)} bytes, not {KEY_BYTES}") from None
        return secret
    with os.fdopen(file, "wb") as new:
        new.write(secret := token_bytes(KEY_BYTES))
    return secret
