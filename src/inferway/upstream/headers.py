"""Which headers travel on, and their form on the wire. Names are lower case throughout.

RFC 9110 section 7.6.1: what `Connection` names, and the fields below, belong to one connection
and end here. Framing (Content-Length, Transfer-Encoding) and Host are written anew.
"""

from __future__ import annotations

from collections.abc import Set

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

# Values of `Connection`, as nearly everybody writes them, that name no field.
PLAIN_CONNECTION = frozenset({b"keep-alive", b"Keep-Alive", b"close", b"Close"})
_LINE = b": ".join
_OPTIONS = frozenset({b"keep-alive", b"close"})


def named_by_connection(headers: Headers) -> frozenset[bytes]:
    """The fields that `Connection` names as hop-by-hop; empty for a plain keep-alive or close."""
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return frozenset(named - _OPTIONS)


def header_block(headers: Headers, dropped: Set[bytes] = frozenset()) -> bytes:
    """`name: value` lines, each with its CRLF, without those whose name is in `dropped`."""
    if dropped:
        headers = [header for header in headers if header[0] not in dropped]
    # Joins, because bytes formatting takes three times as long.
    return b"\r\n".join(map(_LINE, headers)) + b"\r\n" if headers else b""
