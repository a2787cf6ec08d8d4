"""Header fields that travel on, and their form on the wire. Names are lower case throughout.

RFC 9110 section 7.6.1: what `Connection` names, and the fields below, belong to one connection
and end here. Framing (Content-Length, Transfer-Encoding) and Host are written anew.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Generic, TypeVar

from inferway.model import Headers

HOP_BY_HOP: frozenset[bytes] = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
REWRITTEN: frozenset[bytes] = frozenset({b"host", b"content-length", b"expect"})

# The usual values of `Connection`, which name no field.
PLAIN_CONNECTION = frozenset({b"keep-alive", b"Keep-Alive", b"close", b"Close"})
_LINE = b": ".join
_OPTIONS = frozenset({b"keep-alive", b"close"})


MAX_KNOWN_HEADS, MAX_KNOWN_HEAD_BYTES = 128, 4096
_HEAD_END = b"\r\n\r\n"
_LENGTH_LINE = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([1-9][0-9]{0,8})\r\n")

_Head = TypeVar("_Head")


class KnownHeads(Generic[_Head]):
    """Parsed heads of messages, by their bytes without the digits of Content-Length. Clients and
    engines send the same head again and again, and to parse it takes most of the time that a
    request's bytes take."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, _Head] = {}

    def find(self, data: bytes) -> tuple[_Head | None, bytes, int]:
        """Return what is known of the head that `data` begins with, its key, and where its body
        begins, if `data` is one whole message; else None, an empty key, and 0. The head of a
        message with a key may be added once it is parsed."""
        end = data.find(_HEAD_END, 0, MAX_KNOWN_HEAD_BYTES) + 4
        found = _LENGTH_LINE.search(data, 0, end)
        if found is None or int(found[1]) != len(data) - end:
            return None, b"", 0
        start, stop = found.span(1)
        key = data[:start] + data[stop:end]
        return self._heads.get(key), key, end

    def add(self, key: bytes, head: _Head) -> None:
        """Know a head, unless its lines have other ends than they should: where they end is then
        a matter of views."""
        lines = key.count(b"\r\n")
        if key.count(b"\n") == lines == key.count(b"\r"):
            if len(self._heads) >= MAX_KNOWN_HEADS:
                self._heads.clear()
            self._heads[key] = head

    def __len__(self) -> int:
        return len(self._heads)


def named_by_connection(headers: Headers) -> frozenset[bytes]:
    """Return the fields that `Connection` names; empty for a plain keep-alive or close."""
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return frozenset(named - _OPTIONS)


def header_block(headers: Headers, dropped: Set[bytes] = frozenset()) -> bytes:
    """Return lines `name: value`, each with its CRLF, but those with a name in `dropped`."""
    if dropped:
        headers = [header for header in headers if header[0] not in dropped]
    # Joins, because bytes formatting takes three times as long.
    return b"\r\n".join(map(_LINE, headers)) + b"\r\n" if headers else b""
