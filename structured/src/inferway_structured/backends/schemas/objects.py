"""Keywords that llguidance has no words for: those of objects as properties that are there or not,
those of arrays as lists of what may stand where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, permutations
from math import comb, perm
from typing import Any

from inferway_structured.backends.schemas.nodes import Node, Work
from inferway_structured.backends.schemas.said import Said, spend_copies
from inferway_structured.backends.schemas.shapes import finite, identity, span, takes
from inferway_structured.backends.schemas.strings import one_of

MAX_WAYS = 64  # alternatives made of one schema; each costs the compiler the whole object again
MAX_ARRAYS = 120  # of all orders of five values; those of six take 50 ms, and 20 ms a token
_MAX_VALUES = MAX_ARRAYS  # so many different ones have more


def are_many(counts: Iterable[int]) -> bool:
    """Return whether they are more than MAX_WAYS together. The later of thousands are long
    numbers."""
    total = 0
    for count in counts:
        total += count
        if total > MAX_WAYS:
            return True
    return False


def dependent_ways(rule: Mapping[str, Sequence[str]]) -> list[list[Said]]:
    """Return dependentRequired as lists of alternatives that must all be kept. Names that need the
    same go together: either none of them is there, or what they need is."""
    by_need: dict[tuple[str, ...], list[str]] = {}
    for name, needed in rule.items():
        left = tuple(one for one in needed if one != name)
        if left:
            by_need.setdefault(left, []).append(name)
    return [
        [{"properties": dict.fromkeys(names, False)}, {"required": list(needed)}]
        for needed, names in by_need.items()
    ]


def size_ways(
    properties: Mapping[str, Said],
    required: Sequence[str],
    is_open: bool,
    least: int,
    most: int | None,
) -> list[Said] | None:
    """Return minProperties and maxProperties as alternatives of which of the optional `properties`
    are there; `is_open`: others may be, too. None: too many alternatives. llguidance keeps the two
    itself where all listed properties are required; so each alternative says of all of them."""
    optional = [name for name, said in properties.items() if said is not False]
    optional = [name for name in optional if name not in required]
    num_required = len(set(required))
    most_optional = len(optional) if most is None else min(len(optional), most - num_required)
    least_optional = max(0, least - num_required)
    if most_optional < 0:
        return [False]
    if most is None or (not is_open and most >= num_required + len(optional)):
        return _at_least(optional, least_optional, is_open, least)
    if are_many(comb(len(optional), num) for num in range(most_optional + 1)):
        return None
    sizes: dict[str, int] = {"maxProperties": most} if is_open else {}
    if least_optional and is_open:
        sizes["minProperties"] = least
    return [
        {**_exactly(optional, there), **sizes}
        for num in range(most_optional + 1)
        if is_open or num >= least_optional
        for there in combinations(optional, num)
    ]


def _at_least(optional: list[str], num: int, is_open: bool, least: int) -> list[Said] | None:
    if num == 0:
        return [True]
    fewer = range(num) if is_open else range(0)
    if are_many(comb(len(optional), some) for some in (*fewer, num)):
        return None
    ways: list[Said] = [{"required": list(there)} for there in combinations(optional, num)]
    for some in fewer:
        ways += [
            {**_exactly(optional, there), "minProperties": least}
            for there in combinations(optional, some)
        ]
    return ways or [False]


def _exactly(optional: Sequence[str], there: Sequence[str]) -> dict[str, Any]:
    said: dict[str, Any] = {"properties": {name: False for name in optional if name not in there}}
    if there:
        said["required"] = list(there)
    return said


def keeps_sizes(
    properties: Mapping[str, Said],
    required: Sequence[str],
    has_patterns: bool,
    is_open: bool,
    least: int,
    most: int | None,
) -> bool:
    """Return whether llguidance keeps minProperties and maxProperties as they are."""
    optional = [n for n, said in properties.items() if said is not False and n not in required]
    if not optional:
        return True
    num_required = len(set(required))
    few = least - num_required <= 1 and (most is None or most - num_required == 1)
    return few and not is_open and not has_patterns


def name_pattern(node: Node, depth: int = 8) -> str | bool | None:
    """Return what `propertyNames` says as a pattern. True stands for anything, False for nothing,
    None for what is no pattern."""
    if depth == 0:
        return None
    patterns = [_word_pattern(node, word, rule, depth) for word, rule in node.keywords.items()]
    if None in patterns or False in patterns:
        return None if None in patterns else False
    said = [one for one in patterns if one is not True]
    if len(said) > 1:
        return None
    return said[0] if said else True


def _word_pattern(node: Node, word: str, rule: Any, depth: int) -> str | bool | None:
    keywords = node.keywords
    match word:
        case "never":
            return False
        case "type":
            return rule == "string" or (isinstance(rule, list) and "string" in rule)
        case "pattern":
            return str(rule)
        case "const" | "enum":
            texts = [one for one in (rule if word == "enum" else [rule]) if isinstance(one, str)]
            return one_of(texts) if texts else False
        case "minLength" | "maxLength":
            if word == "maxLength" and "minLength" in keywords:
                return True  # said with that
            return f"^(?s:.{{{keywords.get('minLength', 0)},{keywords.get('maxLength', '')}}})$"
        case "$ref":
            return name_pattern(rule, depth - 1)
        case "allOf" if len(rule) == 1:
            return name_pattern(rule[0], depth - 1)
        case "anyOf":
            return _either([name_pattern(inner, depth - 1) for inner in rule])
    return None


def _either(patterns: Sequence[str | bool | None]) -> str | bool | None:
    if None in patterns or True in patterns:
        return None if None in patterns else True
    return "|".join(f"(?:{one})" for one in patterns if one is not False) or False


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
