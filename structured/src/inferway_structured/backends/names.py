"""Names of properties that an answer has written: a model that would write the same one again and
again would spend its answer on it.

llguidance lets a name that a schema does not list come as often as one likes. Readers take the last
of equal names, so nothing is lost if none comes again: once a name stands in an object, no token
may come that ends it there a second time. Of each object, the last names are remembered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from inferway_structured.backends.answer_state import forbid
from inferway_structured.backends.blanks import START, Blanks, Names, Place

if TYPE_CHECKING:
    from inferway_structured.backends.vocabulary import Vocabulary
    from inferway_structured.grammar import MaskRow

_MAX_NAMES = 64
_MAX_BYTES = 256  # of a name that is remembered
_ANY_NAMES = re.compile(r'"patternProperties"|[:,\[]\s*(?:\{\}|true\b)')
_OBJECTS = re.compile(r'"type":\s*"object"|"properties":')
_CLOSED = re.compile(r'"additionalProperties":\s*false')


def may_repeat(schema: str) -> bool:
    """Return whether an answer may write names that the schema does not list; in doubt True."""
    if _ANY_NAMES.search(schema):
        return True
    return len(_CLOSED.findall(schema)) < len(_OBJECTS.findall(schema)) / 2


class BlanksAndNames(Blanks):
    """Counts blanks, and keeps names from coming twice in an object."""

    start = START._replace(names=Names())

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._ending: dict[bytes, list[int]] = {}  # by what they write of a string, to its end
        for token, written in enumerate(self._written):
            if written and b'"' in written:
                self._ending.setdefault(written[: written.index(b'"')], []).append(token)

    def after(self, place: Place, token: int) -> Place:
        written = self._written[token] if token < len(self._written) else None
        if not written:
            return place
        _, in_string, is_escaped, _, names = place
        if in_string and not is_escaped and b'"' not in written and b"\\" not in written:
            if names is None or names.name is None:
                return place
            name = names.name + written if len(names.name) < _MAX_BYTES else None
            return Place(place[0], True, False, 0, Names(names.seen, names.outer, False, name))
        return _after(place, written)

    def narrow(self, row: MaskRow, place: Place) -> None:
        names = place.names
        if names is not None and names.name is not None and names.seen:
            if again := list(self._again(place)):
                others = row.copy()
                for token in again:
                    forbid(others, token)
                if others.any():
                    row[:] = others
        elif place.num_blanks and place.has_enough:
            self.forbid(row)

    def _again(self, place: Place) -> Iterable[int]:
        """Return the tokens that would write a name again."""
        names = place.names
        if names is None or not names.seen or names.name is None or place.is_escaped:
            return
        for seen in names.seen:
            if seen.startswith(names.name):
                yield from self._ending.get(seen[len(names.name) :], ())

    def may_come(self, place: Place, token: int) -> bool:
        return super().may_come(place, token) and token not in self._again(place)


def _after(place: Place, written: bytes) -> Place:
    depth, in_string, is_escaped, num_blanks, names = place
    seen, outer, is_next, name = names or Names()
    for byte in written:
        if in_string:
            in_string = is_escaped or byte != 0x22
            if name is not None and in_string:
                name = name + bytes((byte,)) if len(name) < _MAX_BYTES else None
            elif name is not None:
                seen, name = (*(seen or ())[1 - _MAX_NAMES :], name), None
            is_escaped = byte == 0x5C and not is_escaped
        elif byte in b" \n\t\r":
            num_blanks += 1
        else:
            num_blanks = 0
            if byte == 0x22:
                in_string, name, is_next = True, b"" if is_next else None, False
            elif byte == 0x2C:
                is_next = seen is not None
            elif byte in b"{[":
                depth += 1
                outer = Names(seen, outer)
                seen, is_next = (() if byte == 0x7B else None), byte == 0x7B
            elif byte in b"}]":
                depth -= 1
                seen, outer = (outer.seen, outer.outer) if outer else (None, None)
                is_next = False
    return Place(depth, in_string, is_escaped, num_blanks, Names(seen, outer, is_next, name))
