"""Headers' bytes (HPACK, RFC 7541) -> fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpack import Decoder, HPACKError

from inferway_llmd.ext_proc.wire.frames import ConnectionFault, Fault

MAX_HEADER_BYTES = 65_536
_MAX_KNOWN, _MAX_KNOWN_BYTES = 64, 1024  # blocks of headers, and of each

_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_OF_A_CONNECTION = {  # of HTTP/1; here nobody may say them (RFC 9113, 8.2.2)
    b"connection",
    b"proxy-connection",
    b"keep-alive",
    b"transfer-encoding",
    b"upgrade",
}

Fields = Mapping[bytes, bytes]


class FieldReader:
    """Header blocks -> fields, of one connection. A proxy says the same with each call,
    mostly by numbers of the table: a block is read once for as long as the table is as it was."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEADER_BYTES)
        self._known: dict[bytes, Fields | None] = {}

    def read(self, block: bytes) -> Fields | None:
        """None: they are read, but are no request's (RFC 9113, 8.1.1). Raises ConnectionFault. Of
        fields that stand twice, the last."""
        if block in self._known:
            return self._known[block]
        newest, before = self._newest(), self._size()
        try:
            decoded: list[Any] = list(self._decoder.decode(block, raw=True))
        except HPACKError as e:
            raise ConnectionFault(Fault.COMPRESSION_ERROR, "headers cannot be read") from e
        fields = dict(decoded) if _is_well_formed(decoded) else None
        if self._newest() is not newest or self._size() != before:
            self._known.clear()
        elif len(block) <= _MAX_KNOWN_BYTES:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[block] = fields
        return fields

    def _newest(self) -> object:
        """Another object whenever an entry has come."""
        entries = self._decoder.header_table.dynamic_entries
        return entries[0] if entries else None

    def _size(self) -> tuple[int, int]:
        """Another whenever an entry has gone and none has come."""
        table = self._decoder.header_table
        return len(table.dynamic_entries), table.maxsize


def _is_well_formed(fields: Sequence[tuple[bytes, bytes]]) -> bool:
    """Pseudo headers first and once, names in small letters, none that is for a connection."""
    pseudo = [name for name, _ in fields if name[:1] == b":"]
    return (
        len(set(pseudo)) == len(pseudo)
        and _PSEUDO.issuperset(pseudo)
        and pseudo == [name for name, _ in fields[: len(pseudo)]]
        and all(name == name.lower() and name not in _OF_A_CONNECTION for name, _ in fields)
        and all(value == b"trailers" for name, value in fields if name == b"te")
    )
