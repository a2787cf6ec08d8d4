"""What a journal's frames say: the header of a file, then an entry for each batch. Pure."""

from __future__ import annotations

import msgspec

from inferway.events.records import Record

FORMAT = 1
END = b""  # the payload of a snapshot's last frame


class Identity(msgspec.Struct, frozen=True):
    """What must be the same for a journal to be of use."""

    engine: str  # its name, with its rank
    model: str  # what its engine says it serves
    keys: str  # a key that changes when keys are made in another way, or with another seed


class Position(msgspec.Struct, frozen=True):
    """The batch up to which the engine's events have been applied."""

    seq: int
    digest: bytes
    is_exact: bool  # nothing that the engine holds was unknown then


class Covered(msgspec.Struct, frozen=True):
    """What a snapshot stands for."""

    chain: int  # of the last journal's last frame
    position: Position | None  # None: nothing was applied


class Header(msgspec.Struct, frozen=True):
    """The first frame of a file. Of a snapshot, `number` is that of the last journal in it."""

    format: int
    number: int
    identity: Identity
    covers: Covered | None = None  # None: it is not a snapshot


class Entry(msgspec.Struct, frozen=True, array_like=True):
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
_entry = msgspec.msgpack.Decoder(Entry)
_record: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)

encode_header = _encoder.encode


def decode_header(payload: bytes) -> Header | None:
    """None: it is not one, or of another format."""
    try:
        header = _header.decode(payload)
    except msgspec.DecodeError:
        return None
    return header if header.format == FORMAT else None


def decode_entry(payload: bytes) -> Entry:
    """Raises msgspec.DecodeError."""
    return _entry.decode(payload)


def encode_entry(position: Position, records: list[msgspec.Raw]) -> bytes:
    return _encoder.encode((position.seq, position.digest, position.is_exact, records))


def encode_record(record: Record) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(record))


def decode_record(raw: msgspec.Raw) -> Record:
    """Raises msgspec.DecodeError."""
    return _record.decode(raw)
