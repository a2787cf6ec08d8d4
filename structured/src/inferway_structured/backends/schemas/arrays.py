"""Keywords of arrays that llguidance has no words for, as lists of what may stand where."""

from __future__ import annotations

from itertools import permutations
from math import perm
from typing import Any

from inferway_structured.backends.schemas.nodes import Node
from inferway_structured.backends.schemas.objects import MAX_WAYS
from inferway_structured.backends.schemas.said import spend_copies
from inferway_structured.backends.schemas.shapes import finite, identity, span, takes
from inferway_structured.backends.schemas.work import Work

Said = Any

MAX_ARRAYS = 120  # of all orders of five values; those of six take 50 ms, and 20 ms a token
_MAX_VALUES = MAX_ARRAYS  # so many different ones have more


def unique_ways(node: Node) -> list[Said] | None:
    """Return uniqueItems as all the longest arrays there can be, of which any may end before; None:
    too many."""
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
    if least > longest or not longest:
        return [False] if least else [{"maxItems": 0}]
    if perm(len(different), longest) > MAX_ARRAYS:
        return None
    return [
        {
            "prefixItems": [{"const": value} for value in chosen],
            "minItems": int(least),
            "maxItems": longest,
        }
        for chosen in permutations(different, longest)
    ]


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
