r"""Patterns as sets of texts, for what the library's patterns cannot say: the opposite of one,
look-ahead and the edges of words.

A pattern is read into an expression, and its derivatives (what may follow a character) are the
states of an automaton: there, each `\b` is decided by the two characters beside it, a look-ahead is
"both", and the opposite swaps which states end. The automaton is written as a pattern again.
Everything is counted: what would take many steps, or become long, is not told. Classes are those of
ECMA-262, in which a word is of ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from inferway_structured.backends.schemas.nodes import Work
from inferway_structured.backends.schemas.strings import has_branches, in_rust
from inferway_structured.validate.regexes import Ranges, Reader, Shape, outside

_MAX_STATES = 80
_MAX_STEPS = 2_000  # derivatives, about 8 µs each with what follows from one
_WORK_OF_STEP = 6
_MAX_CHARS = 200  # read
_MAX_PLACES = 80
_MAX_WRITTEN = 2_000
_CHARS_IN_STEP = 40
_MAX_TEXTS = 24  # that are listed
_MANY = _MAX_TEXTS + 1

_ALL: Ranges = ((0, 0x10FFFF),)
_WORDS: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
# ECMA-262's white space, and the ends of its lines, which `.` does not match.
_SPACES: Ranges = (
    *((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
NEVER = r"^[^\s\S]$"  # what no text matches
_LAZY = re.compile(r"[*+?}][?+]")
_ENDLESS = re.compile(r"[*+]|\{\d+,\}|\\\$$")
_IS_REPEATED = re.compile(r"[?*+{]")

# ("class", ranges), ("at", what), ("star", x), ("cat", x, y), ("or", …), ("and", …), ("not", x)
Expression = tuple[Any, ...]
_NONE: Expression = ("class", ())
_EMPTY: Expression = ("empty",)
_ANYTHING: Expression = ("star", ("class", _ALL))
_START, _END, _WORD, _OTHER = "start", "end", "word", "other"  # what stands beside a place


class _UntoldError(Exception):
    """It is not of the syntax that is read here, or too much."""


def opposite(pattern: str, work: Work) -> str | None:
    """Return a pattern of every text that `pattern` does not match; None where it is not told."""
    return _paid(_written(pattern, True), work)


def plainly(pattern: str, work: Work) -> str | None:
    """Return an equal pattern without look-ahead, edges of words, and anchors inside; None where it
    is not told."""
    return _paid(_written(pattern, False), work)


def _paid(found: tuple[str | None, int], work: Work) -> str | None:
    """What is remembered costs the same, or a schema would be light in one process alone."""
    work.spend(_WORK_OF_STEP * found[1])
    return found[0]


@lru_cache(maxsize=1024)
def _written(pattern: str, is_opposite: bool) -> tuple[str | None, int]:
    """Return the pattern, and the steps that it took."""
    automaton = _Automaton()
    try:
        expression = _searched(pattern)
        text = automaton.written(("not", expression) if is_opposite else expression)
    except (_UntoldError, RecursionError):
        text = None
    return text, automaton.steps


@lru_cache(maxsize=1024)
def finite_texts(pattern: str) -> Sequence[str] | None:
    """Return all texts that a pattern matches, None where they are not few."""
    is_whole = pattern.startswith("^") and pattern.endswith("$") and not has_branches(pattern)
    if not is_whole or _ENDLESS.search(pattern):
        return None
    try:
        return tuple(dict.fromkeys(_texts(_read(pattern[1:-1]))))
    except (_UntoldError, RecursionError):
        return None


def _texts(shape: Shape) -> list[str]:
    match shape.kind:
        case "class":
            found = [chr(one) for low, high in shape.ranges for one in _few(low, high)]
        case "alt":
            found = [text for part in shape.parts for text in _texts(part)]
        case "cat":
            found = [""]
            for part in shape.parts:
                found = [before + text for before in found for text in _texts(part)][:_MANY]
        case "repeat" if shape.high is not None and shape.high <= _MAX_TEXTS:
            inner, found, here = _texts(shape.parts[0]), [], [""]
            for count in range(shape.high + 1):
                found += here if count >= shape.low else []
                here = [before + text for before in here for text in inner][:_MANY]
        case "empty":
            return [""]
        case _:
            raise _UntoldError
    if len(found) > _MAX_TEXTS:
        raise _UntoldError
    return found


def _few(low: int, high: int) -> range:
    return range(low, min(high, low + _MAX_TEXTS) + 1)


def _searched(pattern: str) -> Expression:
    """Return the texts in which a pattern finds something."""
    return _cat(_ANYTHING, _before(_read(pattern), _ANYTHING))


def _read(pattern: str) -> Shape:
    if len(pattern) > _MAX_CHARS or _LAZY.search(pattern):
        raise _UntoldError
    reader = _ExactReader(pattern)
    shape = reader.alternatives(0)
    if reader.unsupported or not reader.is_ordinary or _num_places(shape) > _MAX_PLACES:
        raise _UntoldError
    return shape


def _num_places(shape: Shape) -> int:
    """Return how many places it has with repeats spelled out: as much is compared in each step."""
    rounds = max(shape.low, shape.high or 1) if shape.kind == "repeat" else 1
    return rounds * sum(map(_num_places, shape.parts)) if shape.parts else 1


class _ExactReader(Reader):
    """Reads what ECMA-262 says, and keeps what has no width."""

    classes: Mapping[str, Ranges] = MappingProxyType({"d": ((48, 57),), "w": _WORDS, "s": _SPACES})

    def _atom(self, depth: int) -> Shape:
        sign = next((one for one in _SIGNS if self.text.startswith(one, self.at)), "")
        self.at += len(sign)
        if sign in ("(?=", "(?!"):
            inner = self.alternatives(depth + 1)
            self.is_ordinary &= self._take(")")
            found = Shape("ahead", parts=(inner,), low=int(sign == "(?="))
        elif sign == ".":
            return Shape("class", ranges=outside(_LINE_ENDS))
        elif sign:
            found = Shape("at", parts=(Shape(sign),))
        else:
            return super()._atom(depth)
        self.is_ordinary &= not _IS_REPEATED.match(self.text, self.at)
        return found


_SIGNS = ("^", "$", r"\b", r"\B", ".", "(?=", "(?!")


def _before(shape: Shape, rest: Expression) -> Expression:
    """Return what is of this shape, and then of the rest, to the end of the text."""
    match shape.kind:
        case "ahead":
            inner = _before(shape.parts[0], _ANYTHING)
            return _all([inner if shape.low else _not(inner), rest])
        case "cat":
            for part in reversed(shape.parts):
                rest = _before(part, rest)
            return rest
        case "alt" if rest == _ANYTHING:  # any other would be written out for each
            return _any([_before(part, rest) for part in shape.parts])
    return _cat(_plain(shape), rest)


def _plain(shape: Shape) -> Expression:
    match shape.kind:
        case "class":
            return ("class", outside(outside(shape.ranges)))
        case "at":
            return ("at", shape.parts[0].kind)
        case "alt":
            return _any([_plain(part) for part in shape.parts])
        case "cat":
            found = _EMPTY
            for part in reversed(shape.parts):
                found = _cat(_plain(part), found)
            return found
        case "repeat":
            inner = _plain(shape.parts[0])
            found = _EMPTY if shape.high is not None else ("star", inner)
            for _ in range((shape.high or 0) - shape.low):
                found = _any([_EMPTY, _cat(inner, found)])
            for _ in range(shape.low):
                found = _cat(inner, found)
            return found
        case "empty":
            return _EMPTY
    raise _UntoldError  # a look-ahead in what is repeated, or in an alternative


def _cat(one: Expression, other: Expression) -> Expression:
    if _NONE in (one, other):
        return _NONE
    if one == _EMPTY or other == _EMPTY:
        return other if one == _EMPTY else one
    if one[0] == "cat":
        return ("cat", one[1], _cat(one[2], other))
    return ("cat", one, other)


def _any(parts: Sequence[Expression]) -> Expression:
    return _several("or", parts, _NONE, _ANYTHING)


def _all(parts: Sequence[Expression]) -> Expression:
    return _several("and", parts, _ANYTHING, _NONE)


def _several(
    kind: str, parts: Sequence[Expression], nothing: Expression, everything: Expression
) -> Expression:
    flat = [one for part in parts for one in (part[1:] if part[0] == kind else (part,))]
    left = list(dict.fromkeys(one for one in flat if one != nothing))
    if everything in left:
        return everything
    if kind == "or":
        classes = [one for one in left if one[0] == "class"]
        if len(classes) > 1:
            both = outside(outside(tuple(each for one in classes for each in one[1])))
            left = [("class", both), *(one for one in left if one[0] != "class")]
    if len(left) < 2:
        return left[0] if left else nothing
    return (kind, *left)


def _not(one: Expression) -> Expression:
    return _ANYTHING if one == _NONE else _NONE if one == _ANYTHING else ("not", one)


def _is_empty(one: Expression, before: str, after: str) -> bool:
    """Return whether it takes the empty text at a place between these."""
    match one[0]:
        case "empty" | "star":
            return True
        case "at":
            return _holds(one[1], before, after)
        case "cat" | "and":
            return all(_is_empty(part, before, after) for part in one[1:])
        case "or":
            return any(_is_empty(part, before, after) for part in one[1:])
        case "not":
            return not _is_empty(one[1], before, after)
    return False


def _holds(sign: str, before: str, after: str) -> bool:
    if sign in "^$":
        return before == _START if sign == "^" else after == _END
    return ((before == _WORD) != (after == _WORD)) == (sign == r"\b")


class _Automaton:
    def __init__(self) -> None:
        self.steps = 0

    def written(self, expression: Expression) -> str:
        """Return the pattern of these texts. Raises _UntoldError."""
        parts = _parts(expression)
        letters = _letters([one[1] for one in parts if one[0] == "class"])
        sides = [_WORD if _within(letter[0][0], _WORDS) else _OTHER for letter in letters]
        remembers = any(one[0] == "at" for one in parts)
        states: dict[tuple[Expression, str], int] = {(expression, _START): 0}
        moves: list[list[int]] = []
        ends: list[bool] = []
        while len(moves) < len(states):
            here, before = list(states)[len(moves)]
            ends.append(_is_empty(here, before, _END))
            row = []
            for letter, side in zip(letters, sides, strict=True):
                after = self._derived(here, letter[0][0], before, side)
                row.append(states.setdefault((after, side if remembers else ""), len(states)))
            moves.append(row)
            if len(states) > _MAX_STATES:
                raise _UntoldError
        return self._spelled_out(letters, *_merged(moves, ends))

    def _spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > _MAX_STEPS:
            raise _UntoldError

    def _derived(self, one: Expression, char: int, before: str, after: str) -> Expression:
        """Return what may follow a character."""
        self._spend(1)
        match one[0]:
            case "class":
                return _EMPTY if _within(char, one[1]) else _NONE
            case "star":
                return _cat(self._derived(one[1], char, before, after), one)
            case "cat":
                found = _cat(self._derived(one[1], char, before, after), one[2])
                if not _is_empty(one[1], before, after):
                    return found
                return _any([found, self._derived(one[2], char, before, after)])
            case "or":
                return _any([self._derived(part, char, before, after) for part in one[1:]])
            case "and":
                return _all([self._derived(part, char, before, after) for part in one[1:]])
            case "not":
                return _not(self._derived(one[1], char, before, after))
        return _NONE

    def _spelled_out(self, letters: list[Ranges], moves: list[list[int]], ends: list[bool]) -> str:
        """Return the pattern of an automaton that begins in state 0, by taking one state away after
        another: what led through it leads past it then."""
        paths: dict[int, dict[int, Expression]] = {-1: {0: _EMPTY}}
        for at, row in enumerate(moves):
            paths[at] = {-2: _EMPTY} if ends[at] else {}
            for letter, to in zip(letters, row, strict=True):
                paths[at][to] = _any([paths[at].get(to, _NONE), ("class", letter)])
        left = set(range(len(moves)))
        while left:
            least = min(left, key=lambda one: (_num_ways(paths, one), one))
            left.discard(least)
            out = paths.pop(least)
            loop = out.pop(least, _NONE)
            again = _EMPTY if loop == _NONE else ("star", loop)
            for ways in paths.values():
                way = ways.pop(least, None)
                if way is not None:
                    self._lead_past(ways, _cat(way, again), out)
        found = paths[-1].get(-2)
        return NEVER if found is None else f"^(?:{_spelled(found)})$"

    def _lead_past(
        self, ways: dict[int, Expression], way: Expression, out: dict[int, Expression]
    ) -> None:
        for to, after in out.items():
            ways[to] = _any([ways.get(to, _NONE), _cat(way, after)])
            num_chars = len(_spelled(ways[to]))
            self._spend(1 + num_chars // _CHARS_IN_STEP)
            if num_chars > _MAX_WRITTEN:
                raise _UntoldError


def _parts(expression: Expression) -> list[Expression]:
    found, waiting = [], [expression]
    while waiting:
        one = waiting.pop()
        found.append(one)
        if one[0] not in ("class", "at"):
            waiting += one[1:]
    return found


def _letters(classes: Sequence[Ranges]) -> list[Ranges]:
    """Return the characters as sets of which each is wholly in a class or wholly out of it."""
    classes = list(dict.fromkeys([_WORDS, *classes]))
    edges = {0, *(edge for one in classes for low, high in one for edge in (low, high + 1))}
    if len(edges) * len(classes) > _MAX_STEPS:
        raise _UntoldError
    found: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for low, after in pairwise(sorted(edges | {_ALL[0][1] + 1})):
        key = tuple(_within(low, one) for one in classes)
        found.setdefault(key, []).append((low, after - 1))
    return [tuple(one) for one in found.values()]


def _within(char: int, ranges: Ranges) -> bool:
    return any(low <= char <= high for low, high in ranges)


def _merged(moves: list[list[int]], ends: list[bool]) -> tuple[list[list[int]], list[bool]]:
    """Return the automaton with one state for all from which the same texts lead to an end."""
    groups = [int(end) for end in ends]
    while True:
        known: dict[tuple[int, ...], int] = {}
        keys = [(groups[at], *(groups[to] for to in row)) for at, row in enumerate(moves)]
        finer = [known.setdefault(key, len(known)) for key in keys]
        if len(known) == len(set(groups)):
            break
        groups = finer
    first = [finer.index(group) for group in range(len(known))]
    return [[finer[to] for to in moves[at]] for at in first], [ends[at] for at in first]


def _num_ways(paths: dict[int, dict[int, Expression]], one: int) -> int:
    return sum(one in ways for ways in paths.values()) * len(paths[one])


def _spelled(one: Expression, tight: bool = False) -> str:
    match one[0]:
        case "class":
            return _class(one[1])
        case "empty":
            return ""
        case "star":
            return f"{_spelled(one[1], tight=True)}*"
        case "cat":
            text = "".join(_spelled(part) for part in one[1:])
        case _:
            left = [part for part in one[1:] if part != _EMPTY]
            text = "(?:" + "|".join(map(_spelled, left)) + ")"
            return text if len(left) == len(one) - 1 else f"(?:{text}?)" if tight else f"{text}?"
    return f"(?:{text})" if tight else text


def _class(ranges: Ranges) -> str:
    if ranges == _ALL:
        return r"(?s:.)"
    if ranges[0][0] == ranges[-1][1]:
        return _char(ranges[0][0])
    negated = ranges[-1][1] == _ALL[0][1]
    items = "".join(_ends(outside(ranges) if negated else ranges))
    return in_rust(f"[{'^' * negated}{items}]")


def _ends(ranges: Ranges) -> Iterator[str]:
    for low, high in ranges:
        yield _char(low) if low == high else f"{_char(low)}-{_char(high)}"


def _char(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:x}}}"
