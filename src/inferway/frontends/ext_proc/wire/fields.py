"""Headers' bytes (HPACK, RFC 7541) -> fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpack import Decoder, HPACKError

from inferway.frontends.ext_proc.wire.frames import Fault

MAX_HEADER_BYTES = 65_536
_MAX_KNOWN = 64  # blocks of headers

Fields = Mapping[bytes, bytes]


class ConnectionFault(Exception):
    """The client does not keep to HTTP/2; it is told so, and the connection is closed."""

    def __init__(self, fault: Fault, words: str) -> None:
        super().__init__(words)
        self.fault = fault


class FieldReader:
    """Header blocks -> fields, of one connection. A proxy says the same with each call,
    mostly by numbers of the table: a block is read once for as long as the table is as it was."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEADER_BYTES)
        self._known: dict[bytes, Fields] = {}

    def read(self, block: bytes) -> Fields:
        """Raises ConnectionFault. Of fields that stand twice, the last."""
        known = self._known.get(block)
        if known is not None:
            return known
        before = self._table()
        try:
            decoded: list[Any] = list(self._decoder.decode(block, raw=True))
        except HPACKError as e:
            raise ConnectionFault(Fault.COMPRESSION_ERROR, "headers cannot be read") from e
        fields = dict(decoded)
        if self._table() != before or len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        else:
            self._known[block] = fields
        return fields

    def _table(self) -> tuple[int, int, int]:
        """Another whenever an entry has come or gone: each is a new object, in front."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        return len(entries), id(entries[0]) if entries else 0, table.maxsize
