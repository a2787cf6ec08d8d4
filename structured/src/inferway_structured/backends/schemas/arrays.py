"""Keywords of arrays that llguidance has no words for, as lists of what may stand where."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import perm
from typing import Any

from inferway_structured.backends.schemas.nodes import Node
from inferway_structured.backends.schemas.objects import MAX_WAYS, are_many
from inferway_structured.backends.schemas.said import spend_copies
from inferway_structured.backends.schemas.shapes import finite, identity, span, takes
from inferway_structured.backends.schemas.work import Work

Said = Any

_MAX_VALUES = 4 * MAX_WAYS  # so many different ones have more ways


def unique_ways(node: Node) -> list[Said] | None:
    """Return uniqueItems as all the arrays there can be; None: too many."""
    keywords = node.keywords
    least, most = span(node, "minItems", "maxItems")
    if most <= 1:
        return [True]
    items = keywords.get("items")
    if items is None or "prefixItems" in keywords:
        return None
    values = finite(items)
    if values is None or len(values) > _MAX_VALUES:
        return None
    different = list(
        {identity(value): value for value in values if takes(items, value) is not False}.values()
    )
    longest = int(min(len(different), most))
    shortest = int(min(least, longest + 1))
    if are_many(perm(len(different), size) for size in range(shortest, longest + 1)):
        return None
    return [
        exactly([{"const": value} for value in chosen])
        for size in range(shortest, longest + 1)
        for chosen in permutations(different, size)
    ] or [False]


def exactly(items: Sequence[Said]) -> Said:
    said: dict[str, Any] = {"minItems": len(items), "maxItems": len(items)}
    if items:
        said["prefixItems"] = list(items)
    return said


def contains_ways(node: Node, lowered: Said, work: Work) -> list[Said] | None:
    """Return contains as the places where the first of its items can stand; None: too many, or it
    is counted."""
    keywords = node.keywords
    least = keywords.get("minContains", 1)
    if "maxContains" in keywords or least > 1:
        return None
    if least == 0:
        return [True]
    if lowered is True:
        return [{"minItems": 1}]
    most = span(node, "minItems", "maxItems")[1]
    if most > MAX_WAYS:
        return None
    spend_copies(lowered, int(most), work)
    return [
        {"prefixItems": [*[True] * at, lowered], "minItems": at + 1} for at in range(int(most))
    ] or [False]
