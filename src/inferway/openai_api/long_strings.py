"""JSON bodies without the data URLs in them: pictures and sounds, of megabytes.

A parser looks at each byte of 10 MB for 10 ms, and no other thread runs meanwhile. Nothing in a
plain data URL concerns a parser of JSON, so a body is read and edited with a short string in the
place of each, which are put back at the end.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any

import msgspec
import numpy as np

LONG_BYTES = 64 * 1024  # of a string that is worth it
CHUNK_BYTES = 256 * 1024  # that are copied at once; between two of them another thread may run
_BYTES_A_QUOTE = 512  # of a body, at least, if it is searched to its end: a quote takes 0.1 µs
_MARK = secrets.token_hex(16)  # nobody outside knows it, so that no string of a client has it
_STAND_IN = re.compile(f"{_MARK}-([0-9]+)-".encode())


class Shortened:
    """A body and the same without its long data URLs, `short`."""

    __slots__ = ("_body", "_cuts", "_texts", "short")

    def __init__(self, body: bytes, cuts: Sequence[tuple[int, int]]) -> None:
        """`cuts`: from where to where the data URLs stand, without their quotes."""
        self._body, self._cuts = body, cuts
        self._texts = {f"{_MARK}-{number}-": number for number in range(len(cuts))}
        pieces, end = list[bytes](), 0
        for (start, until), text in zip(cuts, self._texts, strict=True):
            pieces += [body[end:start], text.encode()]
            end = until
        self.short = b"".join([*pieces, body[end:]])

    def restored(self, short: bytes) -> bytes | None:
        """Return `short`, whose other bytes may have been edited, with the data URLs in it. None if
        one of them has been read, and so was taken for a short string: a salt, or a name."""
        stand_ins = [*_STAND_IN.finditer(short)]
        if len(stand_ins) != len(self._cuts):
            return None
        out, whole, end = BytesIO(), memoryview(self._body), 0
        for found in stand_ins:
            out.write(short[end : found.start()])
            start, until = self._cuts[int(found[1])]
            for at in range(start, until, CHUNK_BYTES):
                out.write(whole[at : min(at + CHUNK_BYTES, until)])
            end = found.end()
        out.write(short[end:])
        return out.getvalue()

    def restore(self, decoded: msgspec.Struct) -> bool:
        """Put the data URLs into what was decoded of `short`: in the lists and objects of its
        members. Return whether all were found there; if not, it is of no use."""
        whole, left = memoryview(self._body), len(self._cuts)
        todo = [getattr(decoded, name) for name in decoded.__struct_fields__]
        while todo:
            value = todo.pop()
            places: Iterable[tuple[Any, object]]
            if isinstance(value, dict):
                places = value.items()
            elif isinstance(value, list):
                places = enumerate(value)
            else:
                continue
            for place, member in places:
                if isinstance(member, str):
                    number = self._texts.get(member)
                    if number is not None:
                        start, until = self._cuts[number]
                        value[place] = str(whole[start:until], "ascii")
                        left -= 1
                else:
                    todo.append(member)
        return left == 0


def shortened(body: bytes) -> Shortened | None:
    """Return the body without its long data URLs; None if there is none that can be left out."""
    cuts, start = list[tuple[int, int]](), body.find(b'"')
    for _ in range(len(body) // _BYTES_A_QUOTE):
        end = body.find(b'"', start + 1)
        if start < 0 or end < 0:
            break
        if end - start > LONG_BYTES and _is_plain(body, start + 1, end):
            cuts.append((start + 1, end))
        start = end
    return Shortened(body, cuts) if cuts else None


def _is_plain(body: bytes, start: int, end: int) -> bool:
    """Return whether a data URL stands there that means the same in JSON as it does outside."""
    if not body.startswith(b"data:", start) or body.find(b"\\", start, end) >= 0:
        return False
    content = np.frombuffer(body, np.uint8, end - start, start)
    return bool(content.min() >= ord(" ") and content.max() <= ord("~"))
