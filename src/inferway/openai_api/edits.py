"""What we change of a request's body: bytes in, bytes out.

A body is never written anew: what is added is spliced into the client's own JSON, and every other
byte stays, with its order, spelling, spaces and numbers. Where a name stands twice in an object,
the last one counts, as in the engines' parsers.
"""

from __future__ import annotations

import re

import msgspec

MAX_BYTES = 1 << 20  # larger bodies are left alone: this runs on the event loop
MAX_SCANNED_BYTES = 64 << 10  # the same, of bodies that bring their own `vllm_xargs`


class _Body(msgspec.Struct):
    vllm_xargs: msgspec.Raw = msgspec.Raw(b"")


_BODY = msgspec.json.Decoder(_Body)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:]', re.DOTALL)
_NEXT = re.compile(rb"[ \t\r\n]*(.)", re.DOTALL)


def with_vllm_xarg(body: bytes, name: str, value: str) -> bytes | None:
    """`body`, a JSON object, with `name` among its `vllm_xargs`. None if it cannot be had: the
    client says something of `name` itself, or its `vllm_xargs` are no object, or the body is too
    large or no JSON object."""
    if len(body) > MAX_BYTES:
        return None
    try:
        given = bytes(_BODY.decode(body).vllm_xargs)
        is_taken = given.startswith(b"{") and name in _OBJECT.decode(given)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if is_taken:
        return None
    member = msgspec.json.encode(name) + b":" + msgspec.json.encode(value)
    if not given:
        return _with_member(body, body.index(b"{"), b'"vllm_xargs":{%b}' % member)
    if len(body) > MAX_SCANNED_BYTES or not given.startswith((b"{", b"null")):
        return None
    start = _start_of_value(body, "vllm_xargs")
    if given.startswith(b"{"):
        return _with_member(body, start, member)
    return b"%b{%b}%b" % (body[:start], member, body[start + len(b"null") :])


def _with_member(body: bytes, brace: int, member: bytes) -> bytes:
    """As the first of the object that begins at `brace`."""
    after = brace + 1
    following = _NEXT.match(body, after)
    comma = b"" if following is not None and following[1] == b"}" else b","
    return b"%b%b%b%b" % (body[:after], member, comma, body[after:])


def _start_of_value(body: bytes, name: str) -> int:
    """Where the last value of `name`, a member of the outermost object, begins."""
    depth, start = 0, -1
    key = b""
    for token in _TOKEN.finditer(body):
        first = token[0][:1]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        elif depth > 1:
            continue
        elif first == b'"':
            key = token[0]
        elif msgspec.json.decode(key, type=str) == name:
            following = _NEXT.match(body, token.end())
            assert following is not None
            start = following.start(1)
    assert start >= 0, name
    return start
