"""One holder's directory: which files there belong together, and how one takes others' place.

    00000007.snapshot   what the journals 1 to 7 came to
    00000008.journal    what happened since
    00000009.journal    the newest

A journal is written at its end only, by one process; each start begins a new one. A snapshot has
all its bytes before it has its name. Everything else is left over from a crash and goes away.
Nothing here is for the event loop: disks take their time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import msgspec
import xxhash

from inferway.fleet.journal.entries import (
    END,
    Header,
    Identity,
    decode_header,
    encode_header,
)
from inferway.fleet.journal.frames import FrameReader, frame

READ_BYTES = 1 << 20

_JOURNAL, _SNAPSHOT = ".journal", ".snapshot"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is good in a holder's directory."""

    files: list[Path] = field(default_factory=list)  # in order; a snapshot first
    num_bytes: int = 0
    number: int = 0  # of the newest
    chain: int = 0  # what its successor follows on
    refused: str | None = None  # why what was there is not


def directory_name(holder: str) -> str:
    """Readable, safe in any file system, different for different holders."""
    readable = quote(holder, safe="")[:100].replace(".", "_")
    return f"{readable}-{xxhash.xxh3_64_hexdigest(holder.encode())}"


def journal_name(number: int) -> str:
    return f"{number:08d}{_JOURNAL}"


def snapshot_name(number: int) -> str:
    return f"{number:08d}{_SNAPSHOT}"


# reading


def recover(directory: Path, identity: Identity | None) -> Kept:
    """Makes the directory if need be, and leaves only files in it that are good and follow on
    each other: the last is cut where a crash has torn it. None leaves nothing. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = Kept() if identity is None else _find(directory, identity)
    # the newest first: what stays is a beginning at all times
    for path in sorted(directory.iterdir(), reverse=True):
        if path not in kept.files:
            path.unlink()
    sync_directory(directory)
    return kept


def _find(directory: Path, identity: Identity) -> Kept:
    names = {path.name for path in directory.iterdir()}
    refused: str | None = None
    kept = Kept()
    for name in sorted((n for n in names if n.endswith(_SNAPSHOT)), reverse=True):
        header = _whole_snapshot(directory / name)
        refused = refused or _difference(header, identity, name)
        if header is not None and header.covers is not None and header.identity == identity:
            path = directory / name
            kept = Kept([path], path.stat().st_size, header.number, header.covers.chain)
            break
    while (name := journal_name(kept.number + 1)) in names:
        path = directory / name
        reader = FrameReader(kept.chain)
        header, num_entries = _scan(path, reader)
        if header is None or header.identity != identity:
            refused = refused or _difference(header, identity, name)
            break
        if not num_entries and journal_name(header.number + 1) not in names:
            break  # nothing happened in that run: the next one takes its number
        if not reader.is_whole:
            _cut(path, reader.num_good_bytes)
        size = kept.num_bytes + reader.num_good_bytes
        kept = Kept([*kept.files, path], size, header.number, reader.chain)
        if not reader.is_whole:
            break
    return kept if kept.files else Kept(refused=refused)


def _whole_snapshot(path: Path) -> Header | None:
    reader = FrameReader(0)
    last = b"nothing"
    header: Header | None = None
    for payload in payloads(path, reader):
        last = payload
        header = header or decode_header(payload)
        if header is None:
            return None
    return header if reader.is_whole and last == END else None


def _scan(path: Path, reader: FrameReader) -> tuple[Header | None, int]:
    """And how many entries follow."""
    header: Header | None = None
    num_entries = -1
    for payload in payloads(path, reader):
        if header is None and (header := decode_header(payload)) is None:
            break
        num_entries += 1
    return header, max(0, num_entries)


def payloads(path: Path, reader: FrameReader) -> Iterator[bytes]:
    """All of a file's, the header's first."""
    with path.open("rb", buffering=0) as file:
        while data := file.read(READ_BYTES):
            yield from reader.feed(data)


def _difference(header: Header | None, identity: Identity, name: str) -> str | None:
    if header is None:
        return f"{name} is not whole, or of another format"
    was, now = msgspec.to_builtins(header.identity), msgspec.to_builtins(identity)
    for key, value in now.items():
        if was[key] != value:
            return f"it was written for {key} {was[key]!r}, and now it is {value!r}"
    return None


def _cut(path: Path, num_bytes: int) -> None:
    with path.open("r+b") as file:
        file.truncate(num_bytes)
        os.fsync(file.fileno())


def files_up_to(directory: Path, number: int) -> list[Path]:
    """The newest snapshot and the journals after it."""
    names = sorted(path.name for path in directory.iterdir())
    snapshots = [n for n in names if n.endswith(_SNAPSHOT) and n <= snapshot_name(number)]
    first = f"{int(snapshots[-1].split('.')[0]) + 1:08d}" if snapshots else ""
    journals = [n for n in names if n.endswith(_JOURNAL) and first <= n <= journal_name(number)]
    return [directory / name for name in (*snapshots[-1:], *journals)]


# writing


def create(path: Path) -> int:
    """A new file that only we may read, open for writing at its end. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)


def write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def write_snapshot(path: Path, header: Header, entries: Iterator[bytes]) -> None:
    """A new file with all of a snapshot's frames, synced. Raises OSError."""
    with open(create(path), "wb") as file:
        chain = 0
        for payload in _framed(header, entries):
            data, chain = frame(payload, chain)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _framed(header: Header, entries: Iterator[bytes]) -> Iterator[bytes]:
    yield encode_header(header)
    yield from entries
    yield END


def install(directory: Path, number: int, written: Path) -> Iterator[None]:
    """A snapshot that has been written takes the place of the journals up to `number`, and of
    older snapshots. Each step leaves a directory that `recover` makes the same of."""
    written.rename(directory / snapshot_name(number))
    yield
    sync_directory(directory)
    yield
    for path in sorted(directory.iterdir()):
        limit = number if path.name.endswith(_SNAPSHOT) else number + 1
        if path.name < f"{limit:08d}":
            path.unlink()
            yield


def sync_directory(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
