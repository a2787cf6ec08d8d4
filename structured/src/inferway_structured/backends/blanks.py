"""Limits to the blanks and the repeated names that llguidance (1.7) lets an answer write without
end: a model that writes nothing else would spend its answer on them.

Blanks between the tokens of JSON may come as often as one likes, whatever pattern they have. So
they are counted here, and once there are as many as indented JSON needs at this depth, no token may
come that begins with one more.

A name of a property that a schema does not list may come again and again. Readers take the last of
equal names, so nothing is lost if none comes again: once a name stands in an object, no token may
come that ends it there a second time. Of each object, the last names are remembered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from inferway_structured.backends.answer_state import forbid
from inferway_structured.validate.limits import SpecLimits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from inferway_structured.backends.vocabulary import Vocabulary
    from inferway_structured.grammar import MaskRow

_BLANKS = frozenset(b" \t\r\n")
# A line's end and its indentation: two bytes, and four for each level; twice that at the top.
_FEW = 4
_A_LEVEL = 4
_DEEPEST = SpecLimits().max_nesting
# Of the tokens that no JSON begins with: more than these come only where there may be text, or a
# string. Between the tokens of JSON, there is but what ends a tag.
_FEW_OTHERS = 100
_BEGINS_JSON = _BLANKS | frozenset(b'{}[]",:-0123456789tfn')
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


class Names(NamedTuple):
    """The position of an answer among its objects."""

    seen: tuple[bytes, ...] | None = None  # names in the innermost object; None: in an array
    outer: Names | None = None
    is_next: bool = False  # a string that comes is a name
    name: bytes | None = None  # what stands there of one that is being written


class Place(NamedTuple):
    """The position of an answer within its JSON document."""

    depth: int = 0  # of objects and arrays
    in_string: bool = False
    is_escaped: bool = False
    num_blanks: int = 0  # just before, outside of strings
    names: Names | None = None  # where they are looked at

    @property
    def has_enough(self) -> bool:
        return self.num_blanks >= _FEW + _A_LEVEL * self.depth


START = Place()


_NO_NAMES = Names()


def after(place: Place, written: bytes) -> Place:
    depth, in_string, is_escaped, num_blanks, names = place
    if in_string and not is_escaped and b'"' not in written and b"\\" not in written:
        # in the middle of a string: half of what is written, and quickly seen
        if names is None or names.name is None:
            return place
        longer = names.name + written if len(names.name) < _MAX_BYTES else None
        return Place(depth, True, False, 0, Names(names.seen, names.outer, False, longer))
    seen, outer, is_next, name = names or _NO_NAMES
    for byte in written:
        if in_string:
            in_string = is_escaped or byte != 0x22
            if name is not None and in_string:
                name = name + bytes((byte,)) if len(name) < _MAX_BYTES else None
            elif name is not None:
                seen, name = (*(seen or ())[1 - _MAX_NAMES :], name), None
            is_escaped = byte == 0x5C and not is_escaped
        elif byte in _BLANKS:
            num_blanks += 1
        else:
            num_blanks = 0
            if byte == 0x22:
                in_string, name, is_next = True, b"" if is_next else None, False
            elif byte in b"{[":
                depth += 1
                outer = Names(seen, outer) if names is not None else None
                seen, is_next = (() if byte == 0x7B else None), byte == 0x7B
            elif byte in b"}]":
                depth -= 1
                seen, outer = (outer.seen, outer.outer) if outer else (None, None)
                is_next = False
            elif byte == 0x2C:
                is_next = seen is not None
    names = Names(seen, outer, is_next, name) if names is not None else None
    return Place(depth, in_string, is_escaped, num_blanks, names)


class Blanks:
    """Counts the blanks in the answers of one vocabulary."""

    start = START

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._written = vocabulary.token_bytes
        self._others = ~_bits(vocabulary, [_begins(each) for each in self._written])

    def after(self, place: Place, token: int) -> Place:
        written = self._written[token] if token < len(self._written) else None
        return after(place, written) if written else place

    def num_without_too_many(self, place: Place, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` come before the first that may not."""
        for at, token in enumerate(tokens):
            if not self.may_come(place, token):
                return at
            place = self.after(place, token)
        return len(tokens)

    def may_come(self, place: Place, token: int) -> bool:
        too_many = place.has_enough and token < len(self._written)
        return not (too_many and _begins(self._written[token]))

    def narrow(self, row: MaskRow, place: Place) -> None:
        """Leaves what may come at a place."""
        if place.has_enough:
            self.forbid(row)

    def forbid(self, row: MaskRow) -> None:
        """Leaves what does not begin with one; all, if that were nothing."""
        others = row & self._others
        if others.any():
            row[:] = others


class BlanksAndNames(Blanks):
    """Counts blanks, and keeps names from coming twice in an object."""

    start = START._replace(names=_NO_NAMES)

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._ending: dict[bytes, list[int]] = {}  # by what they write of a string, to its end
        for token, written in enumerate(self._written):
            if written and b'"' in written:
                self._ending.setdefault(written[: written.index(b'"')], []).append(token)

    def narrow(self, row: MaskRow, place: Place) -> None:
        if again := self._again(place):
            others = row.copy()
            for token in again:
                forbid(others, token)
            if others.any():
                row[:] = others
        else:
            super().narrow(row, place)

    def _again(self, place: Place) -> Sequence[int]:
        """Return the tokens that would write a name again."""
        names = place.names
        if names is None or not names.seen or names.name is None or place.is_escaped:
            return ()
        return [
            token
            for seen in names.seen
            if seen.startswith(names.name)
            for token in self._ending.get(seen[len(names.name) :], ())
        ]

    def may_come(self, place: Place, token: int) -> bool:
        return super().may_come(place, token) and token not in self._again(place)


class BlanksInTags(Blanks):
    """Counts blanks where it is not known what is JSON."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        begins_text = [each is not None and each[0] not in _BEGINS_JSON for each in self._written]
        self._text = _bits(vocabulary, begins_text)

    def after(self, place: Place, token: int) -> Place:
        written = self._written[token] if token < len(self._written) else None
        if not written:
            return place
        num_blanks = len(written) - len(written.rstrip(bytes(_BLANKS)))
        before = place.num_blanks if num_blanks == len(written) else 0
        return Place(_DEEPEST, num_blanks=before + num_blanks)

    def num_without_too_many(self, _: Place, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may come: all. What stands there decides, and is known when
        the mask is made."""
        return len(tokens)

    def forbid(self, row: MaskRow) -> None:
        import numpy as np

        if np.unpackbits((row & self._text).view(np.uint8)).sum() <= _FEW_OTHERS:
            super().forbid(row)


def _bits(vocabulary: Vocabulary, is_set: Sequence[bool]) -> NDArray[np.int32]:
    import numpy as np

    bits = np.zeros(32 * vocabulary.num_words, np.uint8)
    bits[: len(is_set)] = is_set
    return np.packbits(bits, bitorder="little").view(np.int32)


def _begins(written: bytes | None) -> bool:
    return written is not None and written[0] in _BLANKS
