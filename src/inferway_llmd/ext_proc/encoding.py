"""Protobuf messages, written by hand: building a message of upb's costs several times its bytes.
Fields of numbers below 16. Pure."""

from __future__ import annotations

from functools import lru_cache


def varint(number: int) -> bytes:
    if number < 128:
        return _ONE_BYTE[number]
    written = bytearray()
    while number >= 128:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


_ONE_BYTE = [bytes([number]) for number in range(128)]


def field(number: int, payload: bytes) -> bytes:
    """A message, a string or bytes; also an empty one is written."""
    size = len(payload)
    if size < 128:
        return b"%c%c%b" % (number << 3 | 2, size, payload)
    return b"%c%b%b" % (number << 3 | 2, varint(size), payload)


def number(number: int, value: int) -> bytes:
    """An integer, an enum or a bool; 0 is not written."""
    return b"%c%b" % (number << 3, varint(value)) if value else b""


@lru_cache(maxsize=4096)
def before(size: int, more: int, *numbers: int) -> bytes:
    """Return the bytes that precede a field of `size` bytes in nested messages; `numbers` are the
    fields' numbers from outside. `more` bytes follow the field in the innermost message."""
    heads = b""
    for each in reversed(numbers):
        head = b"%c%b" % (each << 3 | 2, varint(size))
        heads = head + heads
        size += len(head) + more
        more = 0
    return heads
