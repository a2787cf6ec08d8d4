"""Bytes on disk under a name, shared by processes, bounded, and believed only when they are whole.

A file is `HEADER`, then the content: magic, version, name and sha256 of the content. It is written
beside its place and moved there, so that no reader sees half of it; what is damaged all the same
(a full disk, an older version, another's file) is removed and built again. The name is a hash of
all that the content depends on. What was read longest ago goes when there is no room.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import threading
import time
from hashlib import sha256
from pathlib import Path

HEADER = struct.Struct("!8sHQ32s32s")
_MAGIC = b"inferway"
_VERSION = 1
_WHOLE = re.compile(r"[0-9a-f]{64}\.inferway")
_HALF = re.compile(r"[0-9a-f]{64}\.[0-9]+-[0-9]+\.half")

# A file that is being written is not older; an older one is written no more.
_WRITING_SECONDS = 600


def name_of(*parts: bytes) -> str:
    """Return 64 hex digits that are different for any other parts."""
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


class DiskCache:
    """Results of compiles, kept in a folder. Any thread and any number of processes may use the
    same folder. Nothing here raises: a file that cannot be read or written counts as absent."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """The last writer's `max_bytes` holds for all."""
        self._folder = folder
        self._max_bytes = max_bytes
        self.num_damaged = 0  # files found so and removed
        self.num_failed = 0  # files that could not be written
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get(self, name: str) -> bytes | None:
        path = self._path(name)
        try:
            with open(path, "rb") as file:
                # one byte more than may be there is enough to see that it is damaged
                content = _content(name, file.read(self._max_bytes + 1))
            if content is not None:
                os.utime(path)
                return content
        except OSError:
            return None
        self.forget(name)
        return None

    def put(self, name: str, content: bytes) -> None:
        size = HEADER.size + len(content)
        if size > self._max_bytes:
            return
        beside = self._folder / f"{name}.{os.getpid()}-{threading.get_native_id()}.half"
        try:
            with open(beside, "wb") as file:
                file.write(_header(name, content))
                file.write(content)
            os.replace(beside, self._path(name))
        except OSError:
            self.num_failed += 1
            with contextlib.suppress(OSError):
                beside.unlink()
        self._make_room()

    def forget(self, name: str) -> None:
        """Remove content that is whole, and cannot be used all the same."""
        self.num_damaged += 1
        with contextlib.suppress(OSError):
            self._path(name).unlink()

    def num_bytes(self) -> int:
        """Return the bytes of all files now; reads the folder."""
        return sum(size for _, size, _ in self._files())

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.inferway"

    def _make_room(self) -> None:
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self._max_bytes:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size

    def _files(self) -> list[tuple[float, int, str]]:
        """(time of last use, size, path) of what is whole; what was left half written is
        removed."""
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            return [found for entry in entries if (found := _looked_at(entry)) is not None]
        return []


def _looked_at(entry: os.DirEntry[str]) -> tuple[float, int, str] | None:
    with contextlib.suppress(OSError):  # gone: another process has made room, too
        stat = entry.stat(follow_symlinks=False)
        if _WHOLE.fullmatch(entry.name):
            return stat.st_mtime, stat.st_size, entry.path
        if _HALF.fullmatch(entry.name) and stat.st_mtime < time.time() - _WRITING_SECONDS:
            os.unlink(entry.path)
    return None


def _header(name: str, content: bytes) -> bytes:
    digest = sha256(content).digest()
    return HEADER.pack(_MAGIC, _VERSION, len(content), bytes.fromhex(name), digest)


def _content(name: str, data: bytes) -> bytes | None:
    """Return the content of a file; None if that is not what was written under this name."""
    content = data[HEADER.size :]
    return content if data[: HEADER.size] == _header(name, content) else None
