"""Two bodies of requests -> the fields of their prompts that differ, in the order in which prompts
are usually written: tools, arguments of the template, system, messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from inferway_console.records.differences import DifferenceKind, kind_of, num_same

MOST_DIFFERENCES = 64
_DEEPEST = 32
_AROUND = 80  # characters of a text, on both sides
_LONGEST_FIT = 48

_ARGUMENTS = (
    *("chat_template", "chat_template_kwargs", "reasoning_effort", "reasoning", "thinking"),
    *("output_config", "add_generation_prompt", "continue_final_message", "add_special_tokens"),
    *("tool_choice", "documents", "truncate_prompt_tokens", "truncation_side"),
)
# What of a body can be in its prompt.
_PROMPT_FIELDS = (*_ARGUMENTS, "tools", "system", "instructions", "prompt", "input", "messages")


class FieldDifference(msgspec.Struct, frozen=True):
    """A field that differs, and the kind of what does."""

    field: str  # messages[0].content
    kind: DifferenceKind
    before: str = ""  # the text that both have before it
    at: int | None = None  # of a text: the first character that differs


def field_differences(
    left: Mapping[str, Any], right: Mapping[str, Any]
) -> Sequence[FieldDifference]:
    """Return the first of them; none if both make the same prompt, as far as fields decide it."""
    found: list[FieldDifference] = []
    for name in _PROMPT_FIELDS:
        room = MOST_DIFFERENCES - len(found)
        found += islice(_compared(left.get(name), right.get(name), name, 0), room)
    arguments = [each for each in found if each.field.partition(".")[0] in _ARGUMENTS]
    others = [each for each in found if each not in arguments]
    named = [msgspec.structs.replace(a, kind=DifferenceKind.TEMPLATE_ARGUMENT) for a in arguments]
    return [*named, *others]


def at_text(found: Sequence[FieldDifference], before: str) -> FieldDifference | None:
    """Return the difference that stands behind this text of a prompt; if none is known to, the
    first."""
    best, longest = None, 0
    for each in found:
        fit = _fit(before, each.before)
        if fit > longest:
            best, longest = each, fit
    return best or next(iter(found), None)


def _compared(left: Any, right: Any, where: str, depth: int) -> Iterator[FieldDifference]:
    if depth > _DEEPEST:
        return
    if isinstance(left, dict) and isinstance(right, dict):
        yield from _objects(left, right, where, depth)
    elif isinstance(left, list) and isinstance(right, list):
        yield from _lists(left, right, where, depth)
    elif isinstance(left, str) and isinstance(right, str):
        if left != right:
            yield _texts(left, right, where)
    elif left != right:
        both_numbers = all(isinstance(each, int | float) for each in (left, right))
        kind = DifferenceKind.NUMBER if both_numbers else DifferenceKind.TEXT
        yield FieldDifference(where, kind)


def _objects(
    left: dict[str, Any], right: dict[str, Any], where: str, depth: int
) -> Iterator[FieldDifference]:
    shared = [key for key in left if key in right]
    if shared != [key for key in right if key in left]:
        yield FieldDifference(where, DifferenceKind.KEY_ORDER)
    for key in shared:
        yield from _compared(left[key], right[key], f"{where}.{key}", depth + 1)
    for key in [*left, *right]:
        if key not in left or key not in right:
            yield FieldDifference(f"{where}.{key}", DifferenceKind.TEXT)


def _lists(left: list[Any], right: list[Any], where: str, depth: int) -> Iterator[FieldDifference]:
    ours, theirs = _names(left), _names(right)
    if ours and ours != theirs and sorted(ours) == sorted(theirs):
        yield FieldDifference(where, DifferenceKind.TOOL_ORDER)
        return
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        yield from _compared(one, other, f"{where}[{place}]", depth + 1)
    if len(left) != len(right):
        place = min(len(left), len(right))
        yield FieldDifference(f"{where}[{place}]", DifferenceKind.GROWING_LIST)


def _names(items: list[Any]) -> list[str]:
    """Return the names of tools, if these are."""
    found: list[str] = []
    for item in items:
        named = item.get("function", item) if isinstance(item, dict) else None
        name = named.get("name") if isinstance(named, dict) else None
        if not isinstance(name, str):
            return []
        found.append(name)
    return found


def _texts(left: str, right: str, where: str) -> FieldDifference:
    start = num_same(left, right)
    near = slice(max(0, start - _AROUND), start + _AROUND)
    kind = kind_of(left[near], right[near])
    return FieldDifference(where, kind, left[near.start : start], start)


def _fit(before: str, text: str) -> int:
    """Return how many characters of the end of `before` stand near the end of `text`."""
    for length in range(min(_LONGEST_FIT, len(before), len(text)), 3, -1):
        place = text.rfind(before[-length:])
        if place >= 0 and len(text) - place - length <= _AROUND // 4:
            return length
    return 0
