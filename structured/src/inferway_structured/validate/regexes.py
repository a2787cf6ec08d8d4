"""The size of a regular expression, and of the automata it is turned into.

Two things grow beyond any bound in a short text: what counted repeats spell out
(`((a{1,1000}){1,1000}){1,1000}`), and the states of a deterministic automaton
(`(a|b)*a(a|b){12}`: 2^13). The first is computed, the second tried: with repeats cut to a few
rounds, states are counted until there are far more than places in the expression. Both in bounded
steps: a count of steps, no clock, so the verdict is the same everywhere.

This reads any dialect leniently. Whether the text is a regular expression at all is said by the
libraries that use it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple

# Trying: rounds that a repeat is cut to, states per place that are too many, and when trying ends.
_ROUNDS = 10
_STATES_PER_PLACE = 8
_FEWEST_STATES = 500
_STEPS = 100_000
_MAX_PLACES = 600
_MAX_DEPTH = 200

Ranges = tuple[tuple[int, int], ...]  # of characters, both ends among them

_WIDE = 20  # bytes of UTF-8 automaton that a class beyond ASCII takes, as a factor


@dataclass(frozen=True, slots=True)
class Regex:
    """`unsupported`: what no engine here can do, in words, and where: look-around and such."""

    size: int  # places, repeats spelled out; wide classes count more
    repeats: int  # the largest product of counted repeats inside each other
    explodes: bool  # its deterministic automaton grows exponentially
    steps: int  # that it took to say so: where many are tried, they are added up
    shorthands: int  # of `\w`, `\d`, `\s` and their opposites
    is_ordinary: bool  # of the syntax that all dialects share, so that every library reads it
    unsupported: str | None = None


@lru_cache(maxsize=1024)
def measured(text: str) -> Regex:
    """Measure a regular expression, bounded by `_STEPS` and the text's length."""
    reader = Reader(text)
    node = reader.alternatives(0)
    if reader.unsupported is not None:
        return Regex(
            node.size, node.repeats, False, 0, reader.shorthands, False, reader.unsupported
        )
    # Each alternative for itself: one that explodes is enough. What explodes has a loop without
    # an end, which may begin anywhere, and a counted repeat that remembers where it began.
    steps = 0
    for branch in node.parts if node.kind == "alt" else (node,):
        if branch.endless and branch.repeats > 4:
            places = _Places(branch)
            explodes = places.explode(_STEPS - steps)
            steps += places.steps
            if explodes or steps > _STEPS:
                return Regex(node.size, node.repeats, explodes, steps, reader.shorthands, False)
    return Regex(node.size, node.repeats, False, steps, reader.shorthands, reader.is_ordinary)


class Shape(NamedTuple):  # made in a third of a dataclass's time, for each character
    kind: str  # "class", "cat", "alt", "repeat", "empty"
    size: int = 0
    repeats: int = 1
    ranges: Ranges = ()
    parts: tuple[Shape, ...] = ()
    low: int = 1
    high: int | None = 1
    endless: bool = False  # a `*`, a `+` or a `{n,}` is in it


_EMPTY = Shape("empty")
_LAST = 0x10FFFF
_ANY = ((0, 9), (11, _LAST))
_DIGITS = ((48, 57),)
_WORDS = ((48, 57), (65, 90), (95, 95), (97, 122), (0xAA, 0x2FFF))
_SPACES = ((9, 13), (32, 32), (0xA0, 0xA0), (0x2000, 0x200A))
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7, "e": 27, "0": 0}
_ORDINARY_ESCAPES = frozenset(r"dDsSwWnrtfv!\"#$%&'()*+,-./:;=?@[\]^_`{|}~")
_UNSUPPORTED_GROUPS = {
    "?=": "look-ahead",
    "?!": "look-ahead",
    "?<=": "look-behind",
    "?<!": "look-behind",
    "?>": "an atomic group",
    "?(": "a conditional",
}


class Reader:
    """Reads a regular expression as a `Shape`. What has no width is left out of it, and the classes
    of characters are about right."""

    classes: Mapping[str, Ranges] = _CLASSES

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.shorthands = 0
        self.is_ordinary = True
        self.unsupported: str | None = None

    def alternatives(self, depth: int) -> Shape:
        branches = [self._branch(depth)]
        while self._take("|"):
            branches.append(self._branch(depth))
        if len(branches) == 1:
            return branches[0]
        return _joined("alt", branches)

    def _branch(self, depth: int) -> Shape:
        parts: list[Shape] = []
        while self.at < len(self.text) and self.text[self.at] != "|":
            if self.text[self.at] != ")":
                parts.append(self._repeated(self._atom(depth)))
            elif depth:
                break
            else:  # nothing opened it: the libraries say so
                self.is_ordinary = False
                self.at += 1
        return parts[0] if len(parts) == 1 else _joined("cat", parts)

    def _atom(self, depth: int) -> Shape:
        char = self.text[self.at]
        self.at += 1
        if char == "(":
            return self._group(depth)
        if char == "[":
            return _class(self._set())
        if char == ".":
            return _class(_ANY)
        if char in "^$":
            return _EMPTY
        if char == "\\":
            ranges = self._escaped()
            return _EMPTY if ranges is None else _class(ranges)
        if char in "*+?{}]":
            self.is_ordinary = False
        return _class(((ord(char), ord(char)),))

    def _group(self, depth: int) -> Shape:
        start = self.at - 1
        for opening, words in _UNSUPPORTED_GROUPS.items():
            if self.text.startswith(opening, self.at):
                self._refuse(words, start)
        if self._take("?"):  # `?:`, `?i:`, `?P<name>`, `?<name>`; `(?i)` ends at its bracket
            self.is_ordinary &= self.text.startswith(":", self.at)
            while self.at < len(self.text) and self.text[self.at] not in ":)>":
                self.at += 1
            if self.at < len(self.text) and self.text[self.at] != ")":
                self.at += 1
        if depth >= _MAX_DEPTH:
            self._refuse(f"more than {_MAX_DEPTH} groups inside each other", start)
            self.at = len(self.text)
            return _EMPTY
        inner = self.alternatives(depth + 1)
        self.is_ordinary &= self._take(")")
        return inner

    def _repeated(self, node: Shape) -> Shape:
        found = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "*+?":
                self.at += 1
                self.is_ordinary &= not found or (found == 1 and char == "?")
                node = _repeat(node, int(char == "+"), 1 if char == "?" else None)
            elif char == "{" and (counts := self._counts()) is not None:
                low, high = counts
                self.is_ordinary &= not found and (high is None or low <= high)
                node = _repeat(node, low, high)
            else:
                break
            found += 1
        return node

    def _counts(self) -> tuple[int, int | None] | None:
        """Return what `{n}`, `{n,}` or `{n,m}` counts; None if the brace is a character."""
        end = self.text.find("}", self.at, self.at + 40)
        low, comma, high = self.text[self.at + 1 : max(end, self.at + 1)].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            return None
        self.at = end + 1
        first = int(low)
        return first, (first if not comma else int(high) if high else None)

    def _escaped(self) -> Ranges | None:
        r"""Return the character that follows a backslash; None where it is no character: `\b`."""
        start = self.at - 1
        if self.at >= len(self.text):
            self.is_ordinary = False
            return ((92, 92),)
        char = self.text[self.at]
        self.at += 1
        self.is_ordinary &= char in _ORDINARY_ESCAPES
        if char in "bBAzZG":
            return None
        if char in "123456789" or (char == "k" and self.text.startswith("<", self.at)):
            self._refuse("a back-reference", start)
            return None
        if char.lower() in _CLASSES:
            self.shorthands += 1
            ranges = self.classes[char.lower()]
            return ranges if char.islower() else outside(ranges)
        if char in "pP":
            return self._property(char == "P")
        code = self._code(char)
        return ((code, code),)

    def _property(self, negated: bool) -> Ranges:
        """Any property is about letters here: only its overlap with others matters."""
        if self._take("{"):
            self.at = max(self.at, self.text.find("}", self.at) + 1)
        else:
            self.at += 1
        return outside(_WORDS) if negated else _WORDS

    def _code(self, char: str) -> int:
        if char in "xu":
            if self._take("{"):
                end = self.text.find("}", self.at)
                digits = self.text[self.at : max(end, self.at)]
                self.at = max(end + 1, self.at)
            else:
                digits = self.text[self.at : self.at + (2 if char == "x" else 4)]
                self.at += len(digits)
            try:
                return min(int(digits, 16), _LAST)
            except ValueError:
                return ord(char)
        return _CONTROLS.get(char, ord(char))

    def _set(self) -> Ranges:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while self.at < len(self.text) and (first or self.text[self.at] != "]"):
            first = False
            low = self._set_item()
            if len(low) == 1 and low[0][0] == low[0][1] and self._is_range():
                self.at += 1
                high = self._set_item()
                self.is_ordinary &= len(high) == 1 and low[0][0] <= high[0][0] == high[0][1]
                ranges.append((low[0][0], max(low[0][0], high[-1][1])))
            else:
                self.is_ordinary &= not self._is_range()
                ranges.extend(low)
        self.is_ordinary &= bool(ranges) and self.at < len(self.text)
        self.at += 1
        found = tuple(ranges)
        return outside(found) if negated else found

    def _is_range(self) -> bool:
        return self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] not in (
            "]",
            "",
        )

    def _set_item(self) -> Ranges:
        char = self.text[self.at]
        self.at += 1
        # `&&`, `--` and `~~` are operators in some dialects, a bracket in others
        self.is_ordinary &= char not in "[]" and not (
            char in "&-~" and self.text.startswith(char, self.at)
        )
        if char == "[" and self.text.startswith(":", self.at):  # [[:alpha:]]
            self.at = max(self.at, self.text.find("]", self.at) + 1)
            return _WORDS
        if char == "\\":
            return self._escaped() or ((8, 8),)
        return ((ord(char), ord(char)),)

    def _take(self, char: str) -> bool:
        if self.text.startswith(char, self.at):
            self.at += 1
            return True
        return False

    def _refuse(self, words: str, at: int) -> None:
        self.unsupported = self.unsupported or f"{words} at character {at}"


def _class(ranges: Ranges) -> Shape:
    wide = any(high > 127 for _, high in ranges) and ranges[0][0] != ranges[-1][1]
    return Shape("class", size=_WIDE if wide else 1, ranges=ranges)


def _joined(kind: str, parts: list[Shape]) -> Shape:
    return Shape(
        kind,
        size=sum(part.size for part in parts),
        repeats=max((part.repeats for part in parts), default=1),
        parts=tuple(parts),
        endless=any(part.endless for part in parts),
    )


def _repeat(node: Shape, low: int, high: int | None) -> Shape:
    rounds = max(low, 1) if high is None else max(low, high)
    return Shape(
        "repeat",
        node.size * rounds,
        node.repeats * max(rounds, 1),
        parts=(node,),
        low=low,
        high=high,
        endless=high is None or node.endless,
    )


def outside(ranges: Ranges) -> Ranges:
    found, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    if start <= _LAST:
        found.append((start, _LAST))
    return tuple(found)


class _Places:
    """Glushkov's automaton: a state is a set of places (bits), of those that may come next."""

    def __init__(self, node: Shape) -> None:
        self.ranges: list[Ranges] = []
        self.follow: list[int] = []
        self.too_many = False
        self.steps = 0
        self.first = self._add(node)[0]

    def explode(self, steps: int) -> bool:
        """Return whether states outnumber places by far, before `steps` are done."""
        if self.too_many:
            return False
        matching = self._matching()
        limit = max(_FEWEST_STATES, _STATES_PER_PLACE * len(self.follow))
        seen, waiting = {self.first}, [self.first]
        known: dict[int, int] = {0: 0}
        while waiting and self.steps < steps:
            state = waiting.pop()
            for left in {state & places for places in matching}:
                reached = known.get(left)
                if reached is None:
                    reached = known[left] = self._reached(left)
                if reached not in seen:
                    seen.add(reached)
                    waiting.append(reached)
            if len(seen) > limit:
                return True
        return False

    def _reached(self, places: int) -> int:
        reached = 0
        self.steps += 1
        while places:
            lowest = places & -places
            reached |= self.follow[lowest.bit_length() - 1]
            places ^= lowest
            self.steps += 1
        return reached

    def _matching(self) -> set[int]:
        """Return, for each kind of character that the expression tells apart, the places it
        fits."""
        starts = {low for ranges in self.ranges for low, _ in ranges}
        starts |= {high + 1 for ranges in self.ranges for _, high in ranges}
        different = {tuple(ranges): 0 for ranges in self.ranges}
        for place, ranges in enumerate(self.ranges):
            different[ranges] |= 1 << place
        self.steps += min(len(starts), 256) * len(different)
        chars = sorted(starts)[:256]
        fits = [0] * len(chars)
        for ranges, places in different.items():
            for low, high in ranges:
                for at in range(bisect_left(chars, low), bisect_left(chars, high + 1)):
                    fits[at] |= places
        return set(fits) - {0}

    def _add(self, node: Shape) -> tuple[int, int, bool]:
        """Add a part with its first places, its last places, and whether it may be empty."""
        if self.too_many or not node.size:  # or repeats of nothing, inside each other, never end
            return 0, 0, True
        if node.kind == "class":
            if len(self.follow) >= _MAX_PLACES:
                self.too_many = True
                return 0, 0, True
            self.ranges.append(node.ranges)
            self.follow.append(0)
            place = 1 << (len(self.follow) - 1)
            return place, place, False
        if node.kind == "alt":
            firsts, lasts, empties = zip(*map(self._add, node.parts), strict=True)
            return reduce(or_, firsts), reduce(or_, lasts), any(empties)
        if node.kind == "repeat":
            return self._add_repeat(node)
        return self._add_all(node.parts)

    def _add_all(self, parts: tuple[Shape, ...]) -> tuple[int, int, bool]:
        first, last, empty = 0, 0, True
        for part in parts:
            begins, ends, may_be_empty = self._add(part)
            self._link(last, begins)
            first = first | begins if empty else first
            last = last | ends if may_be_empty else ends
            empty = empty and may_be_empty
        return first, last, empty

    def _add_repeat(self, node: Shape) -> tuple[int, int, bool]:
        inner = node.parts[0]
        optional = Shape("repeat", inner.size, 1, (), (inner,), 0, 1)
        if node.high == 1 or (node.high is None and node.low <= 1):
            begins, ends, empty = self._add(inner)
            if node.high is None:
                self._link(ends, begins)
            return begins, ends, empty or node.low == 0
        low = min(node.low, _ROUNDS)
        if node.high is None:
            rest = [Shape("repeat", inner.size, 1, (), (inner,), 0, None)]
        else:
            rest = [optional] * (min(node.high, _ROUNDS) - low)
        return self._add_all(tuple([inner] * low + rest)) if low or rest else (0, 0, True)

    def _link(self, ends: int, begins: int) -> None:
        while ends and not self.too_many:
            lowest = ends & -ends
            self.follow[lowest.bit_length() - 1] |= begins
            ends ^= lowest
            self.steps += 1
