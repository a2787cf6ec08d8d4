"""The file that snapshots of all holders lie in.

    file  = sections | directory | tail
    tail  = length of the directory, 8 bytes | its checksum, 8 bytes | MAGIC    (little endian)

The directory has the place and the checksum (xxh3_64) of each section. So a file that is torn,
changed, of another program or of another format is recognized at its end, and a section that was
changed where it is read. A file gets its name when all of it is on the disk.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from io import BufferedWriter
from pathlib import Path

import msgspec
import xxhash

from inferway.errors import SnapshotError
from inferway.kv.events.holder_snapshot import HolderSnapshot

MAGIC = b"inferway-state-3"  # the number is that of the format
_TAIL = struct.Struct("<QQ16s")


class Identity(msgspec.Struct, frozen=True):
    """What must be the same for a holder's snapshot to be of use."""

    model: str  # what its engine says it serves
    keys: str  # a key that changes when keys are made in another way, or with another seed


class SavedSection(msgspec.Struct, frozen=True):
    """Where a holder's snapshot lies in the file."""

    identity: Identity
    written_at: float  # seconds since 1970
    start: int
    length: int
    checksum: int


Sections = Mapping[str, SavedSection]  # by the holder's name


def read_sections(path: Path) -> Sections:
    """Return where the snapshots lie; nothing if there is no file. Raises SnapshotError if it is
    not whole or of another format, OSError."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return {}
    with file:
        end = file.seek(0, os.SEEK_END) - _TAIL.size
        if end < 0:
            raise SnapshotError(f"{path}: it has {end + _TAIL.size} bytes, and is not whole")
        file.seek(end)
        length, checksum, magic = _TAIL.unpack(file.read(_TAIL.size))
        if magic != MAGIC:
            raise SnapshotError(f"{path}: it is not whole, or of another format than {MAGIC!r}")
        file.seek(max(end - length, 0))
        directory = file.read(min(length, end))
    if len(directory) != length or xxhash.xxh3_64_intdigest(directory) != checksum:
        raise SnapshotError(f"{path}: its directory was changed")
    try:
        return msgspec.msgpack.decode(directory, type=dict[str, SavedSection])
    except msgspec.DecodeError as e:
        raise SnapshotError(f"{path}: its directory cannot be read: {e}") from e


def read_section(path: Path, section: SavedSection) -> bytes:
    """Return an encoded snapshot. Raises SnapshotError if it was changed, OSError."""
    with path.open("rb") as file:
        file.seek(section.start)
        encoded = file.read(section.length)
    if len(encoded) != section.length or xxhash.xxh3_64_intdigest(encoded) != section.checksum:
        raise SnapshotError(f"{path}: its bytes from {section.start} on were changed")
    return encoded


class _Writer:
    """Appends sections to an open file."""

    def __init__(self, file: BufferedWriter) -> None:
        self.sections: dict[str, SavedSection] = {}
        self._file = file

    def add(self, name: str, identity: Identity, written_at: float, encoded: bytes) -> None:
        checksum = xxhash.xxh3_64_intdigest(encoded)
        start = self._file.tell()
        self.sections[name] = SavedSection(identity, written_at, start, len(encoded), checksum)
        self._file.write(encoded)

    def add_kept(self, path: Path, kept: Sections) -> None:
        """Add sections of another file, but those that were changed there."""
        for name, section in kept.items():
            with suppress(SnapshotError):
                encoded = read_section(path, section)
                self.add(name, section.identity, section.written_at, encoded)

    def end(self) -> None:
        """Write the directory, and have all of it on the disk."""
        directory = msgspec.msgpack.encode(self.sections)
        checksum = xxhash.xxh3_64_intdigest(directory)
        self._file.write(directory + _TAIL.pack(len(directory), checksum, MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())


def write_snapshots(
    path: Path,
    snapshots: Iterable[tuple[str, Identity, HolderSnapshot]],
    now: float,
    complete: Callable[[HolderSnapshot], HolderSnapshot],
    kept: Sections,
) -> Sections:
    """Write the snapshots, each completed first, and what the old file has `kept` of others in its
    place. Return where they lie in it. Raises OSError; then the old file is there as it was."""
    new = path.with_suffix(".tmp")
    new.unlink(missing_ok=True)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(file, "wb") as opened:
            writer = _Writer(opened)
            for name, identity, snapshot in snapshots:
                writer.add(name, identity, now, msgspec.msgpack.encode(complete(snapshot)))
            writer.add_kept(path, kept)
            writer.end()
        new.rename(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)
    return writer.sections


def _sync_directory(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
