"""Schemas in llguidance's words, put together. True says nothing, False lets nothing through."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from inferway_structured.backends.schemas.nodes import CHARS_WRITTEN, Work
from inferway_structured.backends.schemas.shapes import TYPES, named_types, spelled

Said = Any  # an object or a boolean


def joined(out: Said, also: Sequence[Said], work: Work) -> Said:
    """Return a schema that is all of these; what comes first says the order of the properties."""
    if out is False or False in also:
        return False
    parts = _different([one for one in (out, *also) if one is not True and one != {}], work)
    if len(parts) < 2:
        return parts[0] if parts else True
    return {"allOf": parts}


def _different(parts: list[Said], work: Work) -> list[Said]:
    found: dict[str, Said] = {}
    for part in parts if len(parts) > 1 else ():
        found.setdefault(_text(part, work), part)
    return list(found.values()) or parts


def _text(said: Said, work: Work) -> str:
    """Return the text by which values are compared: Python takes 1 for True."""
    text = json.dumps(said, sort_keys=True)
    work.spend(len(text) / CHARS_WRITTEN)
    return text


def spend_copies(said: Said, num: int, work: Work) -> None:
    """Spend the work of writing it so many times. Raises TooLargeError."""
    work.spend(num * len(_text(said, work)) / CHARS_WRITTEN)


def add_all(parts: list[Said], out: dict[str, Any], also: list[Said], work: Work) -> None:
    left = _different([part for part in parts if part is not True], work)
    if False in left:
        also.append(False)
    elif left:
        out["allOf"] = left


def add_any(ways: list[Said], out: dict[str, Any], also: list[Said]) -> None:
    left = [way for way in ways if way is not False]
    if any(way is True for way in left):
        return
    said: Said = {"anyOf": left} if left else False
    if left and "anyOf" not in out:
        out.update(said)
    else:
        also.append(said)


def alternatives(said: Said) -> list[Said]:
    return list(said["anyOf"]) if isinstance(said, dict) and list(said) == ["anyOf"] else [said]


def num_ways(also: Sequence[Said]) -> int:
    return prod(len(said["anyOf"]) for said in also if isinstance(said, dict) and "anyOf" in said)


def of_types(way: Said, kinds: frozenset[str]) -> Said:
    """Says the types where they are known: the compiler then has fewer cases."""
    if not isinstance(way, dict) or kinds == TYPES:
        return way
    if "type" not in way:
        return {"type": spelled(kinds), **way} if kinds else False
    return way if named_types(way["type"]) & kinds else False


_APPLICATORS = frozenset({"allOf", "anyOf", "$ref"})


def in_order(out: dict[str, Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords in the order of the schema, because properties come in the order of the
    schemas that list them; but what is said of one object or array stays together."""
    order = {word: at for at, word in enumerate(keywords)}
    here = order.get("properties", -1)
    return dict(
        sorted(
            out.items(),
            key=lambda item: _written_at(order, item[0]) if item[0] in _APPLICATORS else here,
        )
    )


def _written_at(order: Mapping[str, int], word: str) -> int:
    return order.get(word, order.get("oneOf", len(order)))


def by_schema(patterns: Mapping[str, Said], work: Work) -> dict[str, Said]:
    """Return patterns with equal schemas as one: a name may match several of them then."""
    groups: dict[str, list[str]] = {}
    for pattern, said in patterns.items():
        groups.setdefault(_text(said, work), []).append(pattern)
    return {
        group[0] if len(group) == 1 else "|".join(f"(?:{one})" for one in group): patterns[group[0]]
        for group in groups.values()
    }
