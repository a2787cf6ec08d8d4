"""Facts about a schema's values without looking at one, and about one without a validator."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor, inf, isfinite
from typing import Any

from inferway_structured.backends.schemas.nodes import JsonValue, Node

# "fraction": the numbers that are no integers
TYPES = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
_MAX_INTEGERS = 16  # of a range, listed
_DEPTH = 8  # references and applicators followed


def types(node: Node) -> frozenset[str]:
    """Return the JSON types that values of this schema can have, or more than those."""
    found: frozenset[str] | None = node.__dict__.get("_types")
    if found is None:
        found = node.__dict__["_types"] = _types(node, _DEPTH)
    return found


def _types(node: Node, depth: int) -> frozenset[str]:
    found = TYPES
    if depth == 0:
        return found
    for word, value in node.keywords.items():
        match word:
            case "never":
                return frozenset()
            case "type":
                found &= named_types(value)
            case "const":
                found &= {type_of(value)}
            case "enum":
                found &= {type_of(one) for one in value}
            case "allOf":
                for inner in value:
                    found &= _types(inner, depth - 1)
            case "anyOf" | "oneOf":
                found &= frozenset().union(*(_types(inner, depth - 1) for inner in value))
            case "$ref":
                found &= _types(value, depth - 1)
    return found


def named_types(value: Any) -> frozenset[str]:
    names = value if isinstance(value, list) else [value]
    return frozenset(
        one for name in names for one in (("integer", "fraction") if name == "number" else (name,))
    )


def spelled(found: frozenset[str]) -> list[str]:
    """Return types as a `type` keyword has them. There is no word for the fractions alone: it is
    that of all numbers."""
    names = sorted(found - {"fraction", "integer"} if "fraction" in found else found)
    return [*names, "number"] if "fraction" in found else names


def type_of(value: JsonValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isfinite(value) and value == int(value) else "fraction"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def identity(value: JsonValue) -> Hashable:
    """Equal for values that JSON has equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return tuple(map(identity, value))
    if isinstance(value, dict):
        return frozenset((key, identity(inner)) for key, inner in value.items())
    return value  # type: ignore[no-any-return]


def _listed(node: Node) -> frozenset[Hashable]:
    """Return the identities of the values of a node with `enum`."""
    found: frozenset[Hashable] | None = node.__dict__.get("_listed")
    if found is None:
        found = node.__dict__["_listed"] = frozenset(map(identity, node.keywords["enum"]))
    return found


def finite(node: Node, depth: int = _DEPTH) -> Sequence[JsonValue] | None:
    """Return all values that a node takes, and perhaps some that it does not take; None if they are
    too many to list."""
    if depth == 0:
        return None
    keywords = node.keywords
    if "const" in keywords:
        return [keywords["const"]]
    if "enum" in keywords:
        return list(keywords["enum"])
    if "$ref" in keywords:
        return finite(keywords["$ref"], depth - 1)
    for inner in keywords.get("allOf", ()):
        found = finite(inner, depth - 1)
        if found is not None:
            return found
    branches = keywords.get("anyOf") or keywords.get("oneOf")
    if branches:
        lists = [finite(branch, depth - 1) for branch in branches]
        if None not in lists:
            return [value for values in lists for value in values or ()]
    spelled_out = types(node)
    if spelled_out <= {"null", "boolean"}:
        return [value for value in (None, False, True) if type_of(value) in spelled_out]
    if spelled_out == {"integer"} and "minimum" in keywords and "maximum" in keywords:
        least, most = keywords["minimum"], keywords["maximum"]
        if most - least < _MAX_INTEGERS:
            return list(range(ceil(least), floor(most) + 1))
    return None


def takes(node: Node, value: JsonValue, depth: int = _DEPTH) -> bool | None:
    """Return whether `value` is valid; None: not told here."""
    if depth == 0:
        return None
    answers = [
        _keyword_takes(node, word, rule, value, depth) for word, rule in node.keywords.items()
    ]
    return _all(answers)


def _all(answers: Sequence[bool | None]) -> bool | None:
    if False in answers:
        return False
    return None if None in answers else True


def _any(answers: Sequence[bool | None]) -> bool | None:
    if True in answers:
        return True
    return None if None in answers else False


def _keyword_takes(node: Node, word: str, rule: Any, value: JsonValue, depth: int) -> bool | None:
    inner = _INNER.get(word)
    if inner is not None:
        rules = rule if isinstance(rule, list) else [rule]
        return inner([takes(one, value, depth - 1) for one in rules])
    match word:
        case "never":
            return False
        case "if" | "then" | "else":
            return word != "if" or _if_takes(node, rule, value, depth)
        case "type":
            return type_of(value) in named_types(rule)
        case "const":
            return identity(value) == identity(rule)
        case "enum":
            return identity(value) in _listed(node)
    kind = type_of(value)
    if kind not in OF_TYPE.get(word, TYPES):
        return True
    compared = _COMPARED.get(word)
    if compared is not None:
        return bool(compared(value if kind in _NUMBERS else len(value), rule))
    match kind:
        case "string":
            return matches(rule, value) if word == "pattern" else None
        case "object":
            return _object_takes(node, word, rule, value, depth)
        case "array":
            return _array_takes(node, word, rule, value, depth)
    return None


def _if_takes(node: Node, condition: Node, value: JsonValue, depth: int) -> bool | None:
    told = takes(condition, value, depth - 1)
    then = node.keywords.get("then" if told else "else")
    if told is None or then is None:
        return told if told is None else True
    return takes(then, value, depth - 1)


def _none(answers: Sequence[bool | None]) -> bool | None:
    found = _any(answers)
    return None if found is None else not found


def _one(answers: Sequence[bool | None]) -> bool | None:
    if answers.count(True) > 1:
        return False
    return None if None in answers else True in answers


_INNER = {"allOf": _all, "anyOf": _any, "oneOf": _one, "$ref": _all, "not": _none}

_NUMBERS = frozenset({"integer", "fraction"})
OF_TYPE: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBERS
    ),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), frozenset({"string"})),
    **dict.fromkeys(
        (
            *("minItems", "maxItems", "uniqueItems", "contains", "items", "prefixItems"),
            *("minContains", "maxContains", "unevaluatedItems"),
        ),
        frozenset({"array"}),
    ),
    **dict.fromkeys(
        (
            *("properties", "patternProperties", "additionalProperties", "propertyNames"),
            *("required", "minProperties", "maxProperties", "dependentRequired"),
            *("dependentSchemas", "unevaluatedProperties"),
        ),
        frozenset({"object"}),
    ),
}


def is_multiple(value: float, step: float) -> bool:
    return isfinite(value) and (_exact(value) / _exact(step)).denominator == 1


def _exact(number: float) -> Fraction:
    """Return a number as it was written: 0.1 is a tenth."""
    return Fraction(Decimal(str(number)))


# How a number, or the length of any other value, stands to the rule.
_COMPARED: dict[str, Callable[[Any, Any], object]] = {
    **dict.fromkeys(("minimum", "minLength", "minItems", "minProperties"), operator.ge),
    **dict.fromkeys(("maximum", "maxLength", "maxItems", "maxProperties"), operator.le),
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
    "multipleOf": is_multiple,
}


# Python's and ECMA's syntax agree on these; the rest is not told here.
_AGREED = re.compile(r"^(?:[\w \-/:,;@#%&=!~'\"<>]|\[[\w \-^]+\]|\\[.dDsS/\-+*?()]|[.^$|+*?()])*$")


def matches(pattern: str, text: str) -> bool | None:
    """Return whether a pattern matches a text; None if that is not told here. Python's matcher
    holds the GIL, and takes the length of the text for each thing that may be repeated, and two for
    each that may be left out."""
    if len(pattern) > 200 or len(text) > 200 or not text.isascii() or "(?" in pattern:
        return None
    num_repeated, num_either = len(_REPEATED.findall(pattern)), len(_EITHER.findall(pattern))
    if num_either > 9 or (len(text) + 2) ** num_repeated << num_either > _MAX_STEPS:
        return None
    if not _AGREED.match(pattern) or text.endswith("\n") or _NESTED.search(pattern):
        return None
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return None


_REPEATED, _EITHER = re.compile("[*+]"), re.compile("[?|]")
_MAX_STEPS = 10_000
_NESTED = re.compile(
    r"[+*?]\)[+*?]|\|.*\)[+*]"
)  # what might take Python's matcher exponential time


def _object_takes(
    node: Node, word: str, rule: Any, value: dict[str, JsonValue], depth: int
) -> bool | None:
    match word:
        case "required":
            return all(name in value for name in rule)
        case "properties":
            return _all(
                [takes(rule[name], one, depth - 1) for name, one in value.items() if name in rule]
            )
        case "additionalProperties" if "patternProperties" not in node.keywords:
            listed = node.keywords.get("properties", {})
            return _all(
                [takes(rule, one, depth - 1) for name, one in value.items() if name not in listed]
            )
    return None


def _array_takes(
    node: Node, word: str, rule: Any, value: list[JsonValue], depth: int
) -> bool | None:
    match word:
        case "uniqueItems":
            return not rule or len(set(map(identity, value))) == len(value)
        case "prefixItems":
            return _all([takes(inner, one, depth - 1) for inner, one in zip(rule, value)])  # noqa: B905
        case "items":
            rest = value[len(node.keywords.get("prefixItems", ())) :]
            return _all([takes(rule, one, depth - 1) for one in rest])
    return None


def same(a: Node, b: Node, depth: int = _DEPTH) -> bool:
    """Return whether two schemas say the same in the same words; False where that is not told."""
    a, b = a.target, b.target
    if a is b:
        return True
    if depth == 0 or a.keywords.keys() != b.keywords.keys() or "malformed" in a.keywords:
        return False
    return all(same_rule(rule, b.keywords[word], depth - 1) for word, rule in a.keywords.items())


def same_rule(one: Any, other: Any, depth: int = _DEPTH) -> bool:
    """Return whether two keywords have the same value."""
    if isinstance(one, Node):
        return isinstance(other, Node) and same(one, other, depth)
    if isinstance(one, list):
        return (
            isinstance(other, list)
            and len(one) == len(other)
            and all(same_rule(*pair, depth) for pair in zip(one, other, strict=True))
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same_rule(inner, other[name], depth) for name, inner in one.items())
        )
    return not isinstance(other, list | dict | Node) and identity(one) == identity(other)


def span(node: Node, low: str, high: str, depth: int = _DEPTH) -> tuple[float, float]:
    """Return the range of a pair of keywords: minLength and maxLength, minItems and maxItems."""
    keywords = node.keywords
    least, most = keywords.get(low, 0), keywords.get(high, inf)
    if depth:
        inners = [*keywords.get("allOf", ()), *([keywords["$ref"]] if "$ref" in keywords else ())]
        for inner in inners:
            a, b = span(inner, low, high, depth - 1)
            least, most = max(least, a), min(most, b)
    return least, most
