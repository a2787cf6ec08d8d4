"""JSON bodies without the data URLs in them: pictures and sounds, of megabytes.

A parser looks at each byte of 10 MB for 10 ms, and no other thread runs meanwhile. Nothing in a
plain data URL concerns a parser of JSON, so a body is read and edited with a short string in the
place of each, which are put back at the end.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from io import BytesIO
from typing import Any

import msgspec
import numpy as np

LONG_BYTES = 64 * 1024  # of a string that is worth it
# Called after text of so many bytes was made, in which time no other thread could run.
AFTER_TEXT: ContextVar[Callable[[int], object]] = ContextVar("AFTER_TEXT", default=lambda _: None)
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
        pieces: list[bytes] = []
        end = 0
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
        length = len(short) + sum([until - start for start, until in self._cuts])
        length -= sum([found.end() - found.start() for found in stand_ins])
        # NumPy lets other threads run while it copies, and BytesIO gives its buffer away.
        made = BytesIO(bytes(length))
        out = np.frombuffer(made.getbuffer(), np.uint8)
        old, new = np.frombuffer(self._body, np.uint8), np.frombuffer(short, np.uint8)
        at = end = 0
        for found in stand_ins:
            start, until = self._cuts[int(found[1])]
            for piece in (new[end : found.start()], old[start:until]):
                out[at : at + len(piece)] = piece
                at += len(piece)
            end = found.end()
        out[at:] = new[end:]
        del out
        return made.getvalue()

    def restore(self, decoded: msgspec.Struct) -> bool:
        """Put the data URLs into what was decoded of `short`: in the lists and objects of its
        members. Return whether all were found there; if not, it is of no use."""
        whole, left = memoryview(self._body), len(self._cuts)
        for parent, place, text in _strings_in(decoded):
            number = self._texts.get(text)
            if number is not None:
                start, until = self._cuts[number]
                parent[place] = str(whole[start:until], "ascii")
                AFTER_TEXT.get()(until - start)
                left -= 1
        return left == 0


def _strings_in(decoded: msgspec.Struct) -> Iterator[tuple[Any, Any, str]]:
    """Yield each list or object in the members, with the place of a string in it, and the string,
    which may be replaced there."""
    todo = [getattr(decoded, name) for name in decoded.__struct_fields__]
    while todo:
        value = todo.pop()
        if not isinstance(value, dict | list):
            continue
        for place, member in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(member, str):
                yield value, place, member
            else:
                todo.append(member)


def shortened(body: bytes) -> Shortened | None:
    """Return the body without its long data URLs; None if there is none that can be left out."""
    start = body.find(b'"')
    cuts: list[tuple[int, int]] = []
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
