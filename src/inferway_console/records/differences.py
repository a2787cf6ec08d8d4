"""Two texts that begin alike and then differ -> the kind of what differs, and the cure.

A prompt is reused from its start up to the first token that differs, so a few characters near the
start cost all that comes after them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec


class DifferenceKind(StrEnum):
    """The kinds of what differs between two prompts."""

    TIME = "time"
    DATE = "date"
    ID = "id"
    NUMBER = "number"
    WHITESPACE = "whitespace"
    TOOL_ORDER = "tool-order"
    KEY_ORDER = "key-order"
    ORDER = "order"
    GROWING_LIST = "growing-list"
    SHORTENED = "shortened"
    TEMPLATE_ARGUMENT = "template-argument"
    TEXT = "text"


class Remedy(msgspec.Struct, frozen=True):
    """A kind in words."""

    what: str
    cure: str


_LATER = "put it at the end of the prompt, behind all that stays the same"

REMEDIES: dict[DifferenceKind, Remedy] = {
    DifferenceKind.TIME: Remedy(
        "a time is new in each request", f"leave it out, round it to the day, or {_LATER}"
    ),
    DifferenceKind.DATE: Remedy("a date changes", _LATER),
    DifferenceKind.ID: Remedy(
        "an id is new in each request",
        f"leave it out of the prompt (a header can carry it), or {_LATER}",
    ),
    DifferenceKind.NUMBER: Remedy("a number changes", _LATER),
    DifferenceKind.WHITESPACE: Remedy(
        "white space differs",
        "have one place write the prompt, and strip what is pasted into it",
    ),
    DifferenceKind.TOOL_ORDER: Remedy(
        "the same tools come in another order", "sort the tools by name before they are sent"
    ),
    DifferenceKind.KEY_ORDER: Remedy(
        "the keys of the same JSON come in another order",
        "write JSON with sorted keys (json.dumps(..., sort_keys=True))",
    ),
    DifferenceKind.ORDER: Remedy(
        "the same parts come in another order",
        "keep the order fixed: sort documents by id, not by score",
    ),
    DifferenceKind.GROWING_LIST: Remedy(
        "a list in front of the conversation grows",
        "append what is new as a message at the end, or put the list behind all that stays",
    ),
    DifferenceKind.SHORTENED: Remedy(
        "the oldest part of a conversation is dropped or cut short",
        "shorten seldom and by much (compact at a limit), not a little at each turn",
    ),
    DifferenceKind.TEMPLATE_ARGUMENT: Remedy(
        "requests ask the template for something else (thinking, effort, documents)",
        "let all requests of one application give the same chat_template_kwargs and"
        " reasoning_effort",
    ),
    DifferenceKind.TEXT: Remedy("a short text differs", _LATER),
}

_AROUND = 80  # characters, in which what differs in a part may begin and end
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_UUID = re.compile(r"\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b", re.I)
_DATE = re.compile(
    r"\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?!\d)|\b\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}\b"
    rf"|\b{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?\b"
    rf"|\b\d{{1,2}}(?:st|nd|rd|th)? {_MONTH}(?:,? \d{{4}})?\b"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b"
    rf"|\b(?:mon|tue|wed|thu|fri|sat|sun)\b(?:,| (?={_MONTH} \d))",
    re.I,
)
_TIME = re.compile(
    r"(?<!\d)\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?(?: ?[ap]\.?m\b)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\b\d{8}T\d{4,6}(?:Z|[+-]\d{4})?(?!\w)"
    r"|\b1[5-9]\d{8}(?:\.\d+|\d{3}|\d{6})?\b"
    r"|\b\d+ (?:seconds?|minutes?|hours?) ago\b",
    re.I,
)
# A word of letters and digits that no language has.
_ID = re.compile(
    r"\b[0-9a-f]{7,}\b"
    r"|(?<![A-Za-z0-9])(?=[A-Za-z0-9_-]*\d)(?=[A-Za-z0-9_-]*[A-Za-z])[A-Za-z0-9_-]{8,}",
)
_NUMBER = re.compile(r"(?<![\w.])[-+$€]?\d[\d,. ]*%?")
_TOOL_NAME = re.compile(r'"name"\s*:\s*"([^"\n]{1,128})"')
_KEY = re.compile(r'"([^"\n\\]{1,128})"\s*:')
_ITEM = re.compile(
    r"(?:^|\n)[ \t]*(?:[-*•+]|\d{1,4}[.)])[ \t]|(?:^|[,\[])\s*[\"{\[]|[\"}\]]\s*,"
    r"|<(\w+)[^>]*>.*</\1>",
    re.S,
)

# The first that both texts have at the place decides. What is longer goes first.
_WORDS = (
    (DifferenceKind.ID, _UUID),
    (DifferenceKind.TIME, _TIME),
    (DifferenceKind.DATE, _DATE),
    (DifferenceKind.ID, _ID),
    (DifferenceKind.NUMBER, _NUMBER),
)


def kind_of(left: str, right: str, *, are_moved: bool = False) -> DifferenceKind:
    """Return the kind of what differs between two pieces of text that begin, and mostly end, alike.
    `are_moved`: what differs stands elsewhere in the other one."""
    start, left_end, right_end = _differing(left, right)
    order = _order(left, right)
    if are_moved:
        return order or DifferenceKind.ORDER
    ours, theirs = left[start:left_end], right[start:right_end]
    if "".join(ours.split()) == "".join(theirs.split()):
        return DifferenceKind.WHITESPACE
    if order is not None and _letters(ours) == _letters(theirs):
        return order
    for kind, pattern in _WORDS:
        if _stands_at(pattern, left, start, left_end) and _stands_at(
            pattern, right, start, right_end
        ):
            if kind is DifferenceKind.DATE:
                times = (_time_in(left, start, left_end), _time_in(right, start, right_end))
                return DifferenceKind.TIME if None not in times and len(set(times)) > 1 else kind
            return kind
    if not ours.strip() or not theirs.strip():
        longer = _with_line(left, start, left_end) if ours.strip() else None
        longer = longer or _with_line(right, start, right_end)
        if _ITEM.search(longer):
            return DifferenceKind.GROWING_LIST
    return DifferenceKind.TEXT


def num_same(left: str, right: str) -> int:
    """Return how many characters both have in common from the start."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _differing(left: str, right: str) -> tuple[int, int, int]:
    """Return where they begin to differ, and where each ends to."""
    start = num_same(left, right)
    most = min(len(left), len(right)) - start
    same = min(num_same(left[::-1], right[::-1]), most)
    return start, len(left) - same, len(right) - same


def _stands_at(pattern: re.Pattern[str], text: str, start: int, end: int) -> bool:
    """Return whether a match of the pattern has the first character that differs, or touches what
    differs where nothing is left of it on this side."""
    first = max(0, start - _AROUND)
    for found in pattern.finditer(text, first, min(len(text), end + _AROUND)):
        if found.start() <= start < found.end():
            return True
        if start == end and found.start() <= start <= found.end():
            return True
        if found.start() > start:
            break
    return False


def _time_in(text: str, start: int, end: int) -> str | None:
    """Return the first time that begins in what differs. Where it stands behind a date it is new in
    each request; a date alone is new each day."""
    found = _TIME.search(text, start, min(len(text), end + _AROUND))
    return found.group() if found is not None and found.start() < end else None


def _letters(text: str) -> list[str]:
    return sorted(c for c in text if not c.isspace() and c != ",")


def _order(left: str, right: str) -> DifferenceKind | None:
    """Return which names come in another order, if any do."""
    if _is_reordered(_TOOL_NAME.findall(left), _TOOL_NAME.findall(right)):
        return DifferenceKind.TOOL_ORDER
    if _is_reordered(_KEY.findall(left), _KEY.findall(right)):
        return DifferenceKind.KEY_ORDER
    return None


def _is_reordered(left: Sequence[str], right: Sequence[str]) -> bool:
    """Return whether the names that both have come in another order, by their first places."""
    ours, theirs = dict.fromkeys(left), dict.fromkeys(right)
    return [name for name in ours if name in theirs] != [name for name in theirs if name in ours]


def _with_line(text: str, start: int, end: int) -> str:
    """Return what was inserted, with the beginning of the line that it stands in."""
    return text[text.rfind("\n", 0, start) + 1 if "\n" in text[:start] else start : end]
