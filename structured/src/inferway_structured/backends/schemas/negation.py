"""The negation of a schema, said without `not`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from inferway_structured.backends.schemas.nodes import JsonValue, Node
from inferway_structured.backends.schemas.shapes import (
    OF_TYPE,
    TYPES,
    named_types,
    spelled,
    type_of,
)
from inferway_structured.backends.schemas.strings import none_of

Said = Any  # a schema of llguidance's: an object or a boolean


class Negation(NamedTuple):
    said: Said
    exact: bool  # else it lets more through


NOTHING = Negation(False, True)
_WORK_OF_CHAR = 2  # of a text that is not to come: the pattern has a group for each
UNTOLD = Negation(True, False)


class Negate:
    """`lower` says a node itself, for what stands in a double negation, and whether in full."""

    def __init__(
        self,
        lower: Callable[[Node], tuple[Said, bool]],
        are_disjoint: Callable[[Node, Node], bool],
    ) -> None:
        self._lower = lower
        self._are_disjoint = are_disjoint
        self._within: set[str] = set()

    def __call__(self, node: Node, kinds: frozenset[str] = TYPES) -> Negation:
        """Among values of the types `kinds`. One that breaks any one keyword breaks the schema."""
        if node.place in self._within or len(self._within) > 16:
            return UNTOLD  # a recursive schema
        self._within.add(node.place)
        try:
            return any_of(
                [self._keyword(node, word, rule, kinds) for word, rule in node.keywords.items()]
            )
        finally:
            self._within.discard(node.place)

    def _keyword(self, node: Node, word: str, rule: Any, kinds: frozenset[str]) -> Negation:
        if OF_TYPE.get(word, kinds).isdisjoint(kinds):
            return NOTHING
        match word:
            case "never":
                return Negation(True, True)
            case "allOf":
                return any_of([self(inner, kinds) for inner in rule])
            case "anyOf":
                return all_of([self(inner, kinds) for inner in rule])
            case "oneOf":
                return self._one_of(rule, kinds)
            case "$ref":
                return self(rule, kinds)
            case "not":
                return Negation(*self._lower(rule))
            case "properties":
                return any_of([_without(name, self(inner)) for name, inner in rule.items()])
            case "dependentSchemas":
                return any_of([_with(name, self(inner)) for name, inner in rule.items()])
            case "type":
                return _not_type(rule, kinds)
            case "const" | "enum":
                values = rule if word == "enum" else [rule]
                chars = sum(len(value) for value in values if isinstance(value, str))
                node.document.work.spend(_WORK_OF_CHAR * chars)
                return not_values(values, kinds)
        plain = _PLAIN.get(word)
        return plain(rule) if plain else _of_type_at_least(word, node)

    def _one_of(self, branches: Sequence[Node], kinds: frozenset[str]) -> Negation:
        pairs = [(a, b) for at, a in enumerate(branches) for b in branches[at + 1 :]]
        if all(self._are_disjoint(a, b) for a, b in pairs):
            return all_of([self(branch, kinds) for branch in branches])
        return UNTOLD


def any_of(parts: Sequence[Negation]) -> Negation:
    exact = all(part.exact for part in parts)
    said = [part.said for part in parts if part.said is not False]
    if any(one is True for one in said):
        return Negation(True, exact)
    if len(said) < 2:
        return Negation(said[0] if said else False, exact)
    return Negation({"anyOf": said}, exact)


def all_of(parts: Sequence[Negation]) -> Negation:
    exact = all(part.exact for part in parts)
    said = [part.said for part in parts if part.said is not True]
    if any(one is False for one in said):
        return Negation(False, exact)
    if len(said) < 2:
        return Negation(said[0] if said else True, exact)
    return Negation({"allOf": said}, exact)


def _without(name: str, inner: Negation) -> Negation:
    """There is such a property, and it is not what it should be."""
    if inner.said is False:
        return Negation(False, inner.exact)
    return Negation(
        {"type": "object", "properties": {name: inner.said}, "required": [name]}, inner.exact
    )


def _with(name: str, inner: Negation) -> Negation:
    if inner.said is False:
        return Negation(False, inner.exact)
    there: Said = {"type": "object", "required": [name]}
    return Negation({"allOf": [there, inner.said]}, inner.exact)


def _not_type(rule: Any, kinds: frozenset[str]) -> Negation:
    left = kinds - named_types(rule)
    # there is no word for the numbers that are no integers
    exact = "fraction" not in left or "integer" in left or "integer" not in kinds
    return Negation({"type": spelled(left)} if left else False, exact)


def not_values(values: Sequence[JsonValue], within: frozenset[str] = TYPES) -> Negation:
    """Return a schema for every value of the types `within` but these."""
    left, exact = set(within), True
    said: list[Said] = []
    values = [value for value in values if type_of(value) in within]
    kinds = {type_of(value) for value in values}
    if "null" in kinds:
        left.discard("null")
    if "boolean" in kinds:
        left.discard("boolean")
        said += [{"const": one} for one in (False, True) if not _holds(values, one)]
    if "string" in kinds:
        left.discard("string")
        texts = [value for value in values if isinstance(value, str)]
        said.append({"type": "string", "pattern": none_of(texts)})
    if kinds & {"integer", "fraction"}:
        left -= {"integer", "fraction"}
        said += _between(sorted({value for value in values if _is_number(value)}))
    for kind, word in (("array", "minItems"), ("object", "minProperties")):
        if kind in kinds:
            left.discard(kind)
            sized = [value for value in values if type_of(value) == kind]
            only_empty = not any(sized)
            exact = exact and only_empty
            said.append({"type": kind, word: 1} if [] in sized or {} in sized else {"type": kind})
    if left:
        said.append({"type": spelled(frozenset(left))})
    return any_of([Negation(one, exact) for one in said])


def _holds(values: Sequence[JsonValue], one: bool) -> bool:
    return any(value is one for value in values)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _between(numbers: Sequence[float]) -> list[dict[str, Any]]:
    ends: list[float | None] = [None, *numbers, None]
    ranges = []
    for low, high in pairwise(ends):
        one: dict[str, Any] = {"type": "number"}
        if low is not None:
            one["exclusiveMinimum"] = low
        if high is not None:
            one["exclusiveMaximum"] = high
        ranges.append(one)
    return ranges


def _not_required(names: Sequence[str]) -> Negation:
    return any_of(
        [Negation({"type": "object", "properties": {name: False}}, True) for name in names]
    )


def _not_dependent(rule: dict[str, Sequence[str]]) -> Negation:
    return any_of(
        [
            Negation({"type": "object", "required": [name], "properties": {needed: False}}, True)
            for name, names in rule.items()
            for needed in names
        ]
    )


def _bound(kind: str, word: str, shift: int = 0) -> Callable[[Any], Negation]:
    def negated(rule: Any) -> Negation:
        limit = rule + shift
        if shift == -1 and limit < 0:
            return NOTHING
        return Negation({"type": kind, word: int(limit) if shift else limit}, True)

    return negated


_PLAIN: dict[str, Callable[[Any], Negation]] = {
    "required": _not_required,
    "dependentRequired": _not_dependent,
    "minimum": _bound("number", "exclusiveMaximum"),
    "maximum": _bound("number", "exclusiveMinimum"),
    "exclusiveMinimum": _bound("number", "maximum"),
    "exclusiveMaximum": _bound("number", "minimum"),
    "minLength": _bound("string", "maxLength", -1),
    "maxLength": _bound("string", "minLength", 1),
    "minItems": _bound("array", "maxItems", -1),
    "maxItems": _bound("array", "minItems", 1),
    "minProperties": _bound("object", "maxProperties", -1),
    "maxProperties": _bound("object", "minProperties", 1),
}

_STRING_WORDS = frozenset({"pattern", "format"})
_ITEM_WORDS = frozenset({"items", "prefixItems", "uniqueItems", "unevaluatedItems"})
_OBJECT_WORDS = frozenset(
    {"patternProperties", "additionalProperties", "propertyNames", "unevaluatedProperties"}
)


def _of_type_at_least(word: str, node: Node) -> Negation:
    """Return the opposite of a keyword that cannot be said, as far as that: only values of its type
    can break it."""
    if word in _STRING_WORDS:
        return Negation({"type": "string"}, False)
    if word == "multipleOf":
        return Negation({"type": "number"}, False)
    if word in _ITEM_WORDS:
        return Negation({"type": "array", "minItems": 1}, False)
    if word == "contains":
        return Negation({"type": "array"}, False)
    if word in _OBJECT_WORDS:
        return Negation({"type": "object"}, False)
    if word in ("then", "else", "minContains", "maxContains") and _ASIDE[word] not in node.keywords:
        return NOTHING
    return UNTOLD


_ASIDE = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
