"""A journal's files: their bytes, and which files of one holder's directory belong together.

    00000007.snapshot   what the journals 1 to 7 came to
    00000008.journal    what happened since
    00000009.journal    the newest

    file  = frame with the header, a frame for each batch
    frame = length, 4 bytes | checksum, 8 bytes | payload         (little endian)

A frame's checksum is xxh3_64 of its payload, seeded with the checksum before it: through a file,
and from the end of one file to the header of the next. So what can be read is a beginning of what
was written, without a hole, whatever a crash has left of the rest.

A journal is written at its end only, by one process; each start begins a new one. A snapshot has
all its bytes before it has its name, and ends with an empty frame. Everything else is left over
from a crash and goes away. Disks take their time: the event loop reads and writes in threads.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import msgspec
import xxhash

from inferway.errors import JournalError
from inferway.kv.events.records import Record

FORMAT = 2
END = b""  # the payload of a snapshot's last frame
READ_BYTES = 1 << 20
MAX_FRAME_BYTES = 64 * 1024 * 1024  # an engine's largest batch is 16 MiB

_JOURNAL, _SNAPSHOT = ".journal", ".snapshot"
_HEAD = struct.Struct("<IQ")


def frame(payload: bytes, chain: int) -> tuple[bytes, int]:
    """Return the frame's bytes, and the checksum that the next one follows on."""
    checksum: int = xxhash.xxh3_64_intdigest(payload, chain)
    return _HEAD.pack(len(payload), checksum) + payload, checksum


class FrameReader:
    """Turns bytes, in pieces of any size, into payloads. It stops for good where a frame does not
    follow from the one before."""

    def __init__(self, chain: int) -> None:
        self.chain = chain  # of the last good frame
        self.num_good_bytes = 0  # up to its end
        self._rest = b""
        self._broken = False

    @property
    def is_whole(self) -> bool:
        """Whether all bytes so far were good frames."""
        return not self._broken and not self._rest

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the payloads that are complete now; take them all before feeding more."""
        data = self._rest + data if self._rest else data
        start = 0
        while not self._broken and len(data) - start >= _HEAD.size:
            length, checksum = _HEAD.unpack_from(data, start)
            end = start + _HEAD.size + length
            if length > MAX_FRAME_BYTES:
                self._broken = True
                break
            if end > len(data):
                break
            payload = data[start + _HEAD.size : end]
            if xxhash.xxh3_64_intdigest(payload, self.chain) != checksum:
                self._broken = True
                break
            self.chain, self.num_good_bytes = checksum, self.num_good_bytes + end - start
            start = end
            yield payload
        self._rest = data[start:]


class Identity(msgspec.Struct, frozen=True):
    """The facts that must be the same for a journal to be of use."""

    engine: str  # its name, with its rank
    model: str  # what its engine says it serves
    keys: str  # a key that changes when keys are made in another way, or with another seed


class Position(msgspec.Struct, frozen=True):
    """The batch up to which the engine's events have been applied."""

    seq: int
    digest: bytes
    is_exact: bool  # nothing that the engine holds was unknown then


class Covered(msgspec.Struct, frozen=True):
    """The part of a history that a snapshot stands for."""

    chain: int  # of the last journal's last frame
    position: Position | None  # None: nothing was applied


class Header(msgspec.Struct, frozen=True):
    """The first frame of a file. Of a snapshot, `number` is that of the last journal in it."""

    format: int
    number: int
    identity: Identity
    covers: Covered | None = None  # None: it is not a snapshot


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """What one batch changed; in a snapshot, a piece of what there is. A batch may be big: its
    records are encoded and decoded one at a time."""

    seq: int
    digest: bytes
    is_exact: bool
    records: list[msgspec.Raw]

    @property
    def position(self) -> Position:
        return Position(self.seq, self.digest, self.is_exact)


_encoder = msgspec.msgpack.Encoder()
_header = msgspec.msgpack.Decoder(Header)
_entry = msgspec.msgpack.Decoder(JournalEntry)
_record: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)

encode_header = _encoder.encode


def decode_header(payload: bytes) -> Header | None:
    """Return the header in a payload; None if it is none, or of another format."""
    try:
        header = _header.decode(payload)
    except msgspec.DecodeError:
        return None
    return header if header.format == FORMAT else None


def decode_entry(payload: bytes) -> JournalEntry:
    """Return the entry in a payload. Raises msgspec.DecodeError."""
    return _entry.decode(payload)


def encode_entry(position: Position, records: list[msgspec.Raw]) -> bytes:
    return _encoder.encode((position.seq, position.digest, position.is_exact, records))


def encode_record(record: Record) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(record))


def decode_record(raw: msgspec.Raw) -> Record:
    """Return the record that `raw` encodes. Raises msgspec.DecodeError."""
    return _record.decode(raw)


@dataclass(frozen=True, slots=True)
class JournalFiles:
    """The readable files in a holder's directory."""

    files: list[Path] = field(default_factory=list)  # in order; a snapshot first
    num_bytes: int = 0
    number: int = 0  # of the newest
    chain: int = 0  # what its successor follows on
    refused: str | None = None  # why what was there is not


def directory_name(holder: str) -> str:
    """Return a name that is readable, safe in any file system, and different for different
    holders."""
    readable = quote(holder, safe="")[:100].replace(".", "_")
    return f"{readable}-{xxhash.xxh3_64_hexdigest(holder.encode())}"


def journal_name(number: int) -> str:
    return f"{number:08d}{_JOURNAL}"


def snapshot_name(number: int) -> str:
    return f"{number:08d}{_SNAPSHOT}"


# reading


def recover(directory: Path, identity: Identity | None) -> JournalFiles:
    """Make the directory if need be, and leave only files in it that are good and follow on each
    other: the last is cut where a crash has torn it. An identity of None leaves nothing. Return
    what was left. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = JournalFiles() if identity is None else _find(directory, identity)
    # the newest first: what stays is a beginning at all times
    for path in sorted(directory.iterdir(), reverse=True):
        if path not in kept.files:
            path.unlink()
    sync_directory(directory)
    return kept


def _find(directory: Path, identity: Identity) -> JournalFiles:
    names = {path.name for path in directory.iterdir()}
    refused: str | None = None
    kept = JournalFiles()
    for name in sorted((n for n in names if n.endswith(_SNAPSHOT)), reverse=True):
        header = _snapshot_header(directory / name)
        refused = refused or _difference(header, identity, name)
        if header is not None and header.covers is not None and header.identity == identity:
            path = directory / name
            kept = JournalFiles([path], path.stat().st_size, header.number, header.covers.chain)
            break
    while (name := journal_name(kept.number + 1)) in names:
        path = directory / name
        reader = FrameReader(kept.chain)
        header, num_entries, _ = _scan(path, reader)
        if header is None or header.identity != identity:
            refused = refused or _difference(header, identity, name)
            break
        if not num_entries and journal_name(header.number + 1) not in names:
            break  # nothing happened in that run: the next one takes its number
        if not reader.is_whole:
            _cut(path, reader.num_good_bytes)
        size = kept.num_bytes + reader.num_good_bytes
        kept = JournalFiles([*kept.files, path], size, header.number, reader.chain)
        if not reader.is_whole:
            break
    return kept if kept.files else JournalFiles(refused=refused)


def _snapshot_header(path: Path) -> Header | None:
    """None: the snapshot is not whole, or of another format."""
    reader = FrameReader(0)
    header, _, last = _scan(path, reader)
    return header if reader.is_whole and last == END else None


def _scan(path: Path, reader: FrameReader) -> tuple[Header | None, int, bytes]:
    """A file's header, how many frames follow it, and the payload of the last of them."""
    header: Header | None = None
    num_frames, last = -1, b"none"
    for last in (payload for data in _pieces(path) for payload in reader.feed(data)):
        if header is None and (header := decode_header(last)) is None:
            break
        num_frames += 1
    return header, max(0, num_frames), last


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while data := file.read(READ_BYTES):
            yield data


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
    """Return the newest snapshot and the journals after it."""
    names = sorted(path.name for path in directory.iterdir())
    snapshots = [n for n in names if n.endswith(_SNAPSHOT) and n <= snapshot_name(number)]
    first = f"{int(snapshots[-1].split('.')[0]) + 1:08d}" if snapshots else ""
    journals = [n for n in names if n.endswith(_JOURNAL) and first <= n <= journal_name(number)]
    return [directory / name for name in (*snapshots[-1:], *journals)]


class History:
    """What files tell, a snapshot and journals, one after the other. `header` is that of the last
    file, `chain` what its successor follows on, `position` where the history ends; all are known
    once everything has been read."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.header: Header | None = None
        self.chain = 0
        self.position: Position | None = None
        self._files = files
        self._reader: FrameReader | None = None  # of the file that is being read

    def records(self) -> Iterator[Record]:
        """Yield all records, from the start. Raises JournalError and msgspec.DecodeError as
        `entries` does, OSError."""
        for path, data in self.pieces():
            for raw in self.entries(path, data):
                yield decode_record(raw)

    def pieces(self) -> Iterator[tuple[Path, bytes]]:
        """Yield the files' bytes, for `entries`; b"" ends a file. Raises OSError."""
        for path in self._files:
            for data in _pieces(path):
                yield path, data
            yield path, b""

    def entries(self, path: Path, data: bytes) -> Iterator[msgspec.Raw]:
        """Yield the records that are complete with the next piece. Raises JournalError where a file
        is not whole or not of this format, msgspec.DecodeError."""
        if self._reader is None:
            self._reader, self.header = FrameReader(self.chain), None
        for payload in self._reader.feed(data):
            if self.header is None:
                self._begin(path, payload)
            elif payload != END:
                entry = decode_entry(payload)
                self.position = entry.position
                yield from entry.records
        if not data:
            self._end(path, self._reader)

    def _begin(self, path: Path, payload: bytes) -> None:
        self.header = decode_header(payload)
        if self.header is None:
            raise JournalError(f"{path}: its header is not one of format {FORMAT}")
        if self.header.covers is not None:
            self.position = self.header.covers.position

    def _end(self, path: Path, reader: FrameReader) -> None:
        if self.header is None or not reader.is_whole:
            raise JournalError(f"{path}: not whole behind byte {reader.num_good_bytes}")
        self.chain = self.header.covers.chain if self.header.covers else reader.chain
        self._reader = None


# writing


def create(path: Path) -> int:
    """Open a new file that only we may read, for writing at its end. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)


def write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def write_snapshot(path: Path, header: Header, entries: Iterator[bytes]) -> None:
    """Write a new file with all of a snapshot's frames, and sync it. Raises OSError."""
    with open(create(path), "wb") as file:
        checksum = 0
        for payload in itertools.chain([encode_header(header)], entries, [END]):
            data, checksum = frame(payload, checksum)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def install(directory: Path, number: int, written: Path) -> Iterator[None]:
    """Put a snapshot that has been written in the place of the journals up to `number`, and of
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
