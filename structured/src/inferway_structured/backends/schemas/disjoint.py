"""Disjoint schemas, which share no value: then "exactly one of them" is "any of them"."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from inferway_structured.backends.schemas.nodes import Node
from inferway_structured.backends.schemas.shapes import (
    TYPES,
    finite,
    matches,
    span,
    takes,
    types,
)

_DEPTH = 6

# Whether no text matches both of two patterns; asked of a library, so not of this pure room.
PatternsDisjoint = Callable[[str, str], bool]


class Disjoint:
    """Remembers its answers: the same pairs come again under every branch."""

    def __init__(self, patterns_disjoint: PatternsDisjoint) -> None:
        self._patterns_disjoint = patterns_disjoint
        self._known: dict[tuple[str, str, str | None, int], bool] = {}

    def __call__(self, a: Node, b: Node, beside: Node | None = None, depth: int = _DEPTH) -> bool:
        """Return whether no value is both, of those that are `beside`, too: the schema whose
        branches they are. False where that cannot be told."""
        if depth == 0 or a is b:
            return False
        key = (a.place, b.place, beside.place if beside else None, depth)
        found = self._known.get(key)
        if found is None:
            self._known[key] = False  # while it is looked into: recursive schemas
            found = self._known[key] = self._tell(a, b, beside, depth)
        return found

    def _tell(self, a: Node, b: Node, beside: Node | None, depth: int) -> bool:
        common = types(a) & types(b) & (types(beside) if beside else TYPES)
        if not common or self._values_apart(a, b) or self._values_apart(b, a):
            return True
        if any(self._parts_apart(x, y, beside, depth) for x, y in ((a, b), (b, a))):
            return True
        # Sorted, or how much is looked through, which is limited, would be another in each process.
        return all(self._apart_as(kind, a, b, beside, depth) for kind in sorted(common))

    def _values_apart(self, a: Node, b: Node) -> bool:
        values = finite(a)
        return values is not None and all(
            takes(a, value) is False or takes(b, value) is False for value in values
        )

    def _parts_apart(self, a: Node, b: Node, beside: Node | None, depth: int) -> bool:
        keywords = a.keywords
        if "$ref" in keywords and self(keywords["$ref"], b, beside, depth - 1):
            return True
        if any(self(inner, b, beside, depth - 1) for inner in keywords.get("allOf", ())):
            return True
        return any(
            all(self(inner, b, beside, depth - 1) for inner in keywords[word])
            for word in ("anyOf", "oneOf")
            if keywords.get(word)
        )

    def _apart_as(self, kind: str, a: Node, b: Node, beside: Node | None, depth: int) -> bool:
        """Return whether they share no value of this type."""
        if kind == "object":
            return self._objects_apart(a, b, beside, depth)
        if kind == "array":
            return _spans_apart(a, b, "minItems", "maxItems") or self._items_apart(a, b, depth)
        if kind == "string":
            return _spans_apart(a, b, "minLength", "maxLength") or self._texts_apart(a, b)
        if kind not in ("integer", "fraction"):
            return False
        return any(_below(x.keywords, y.keywords) for x, y in ((a, b), (b, a)))

    def _objects_apart(self, a: Node, b: Node, beside: Node | None, depth: int) -> bool:
        around = all_of_it(beside) if beside else []
        flat_a, flat_b = [*all_of_it(a), *around], [*all_of_it(b), *around]
        needed = {name for node in (*flat_a, *flat_b) for name in node.keywords.get("required", ())}
        if any(needed.issuperset(names) for node in (*flat_a, *flat_b) for names in _absent(node)):
            return True
        return any(
            self._properties_apart(x, y, name, depth)
            for name in sorted(needed)
            for x in flat_a
            for y in flat_b
        )

    def _properties_apart(self, a: Node, b: Node, name: str, depth: int) -> bool:
        ours, theirs = property_of(a, name), property_of(b, name)
        if any(one is not None and not types(one) for one in (ours, theirs)):
            return True
        return self._both(ours, theirs, depth)

    def _items_apart(self, a: Node, b: Node, depth: int) -> bool:
        least = max(span(a, "minItems", "maxItems")[0], span(b, "minItems", "maxItems")[0])
        return any(
            self._both(item_of(a, at), item_of(b, at), depth) for at in range(int(min(least, 8)))
        )

    def _both(self, a: Node | None, b: Node | None, depth: int) -> bool:
        return a is not None and b is not None and self(a, b, None, depth - 1)

    def _texts_apart(self, a: Node, b: Node) -> bool:
        ours, theirs = a.keywords.get("pattern"), b.keywords.get("pattern")
        return ours is not None and theirs is not None and self._patterns_disjoint(ours, theirs)


def all_of_it(node: Node, depth: int = _DEPTH) -> list[Node]:
    """Return the node and all that a value of it must also be."""
    found = [node]
    if depth:
        keywords = node.keywords
        for inner in (*keywords.get("allOf", ()), *filter(None, [keywords.get("$ref")])):
            found += all_of_it(inner, depth - 1)
    return found


def _absent(node: Node) -> list[frozenset[str]]:
    """Sets of names that do not stand together: `not` of `required` and nothing else."""
    keywords = node.keywords.get("not")
    inner = keywords.keywords if keywords is not None else {}
    if inner and set(inner) <= {"required", "type"} and inner.get("type", "object") == "object":
        return [frozenset(inner.get("required", ()))] if "required" in inner else []
    return []


def property_of(node: Node, name: str) -> Node | None:
    """Return what a property must be, as far as it is one schema; None if it may be anything."""
    keywords = node.keywords
    listed = keywords.get("properties", {}).get(name)
    if listed is not None:
        return listed  # type: ignore[no-any-return]
    for pattern, inner in keywords.get("patternProperties", {}).items():
        match matches(pattern, name):
            case True:
                return inner  # type: ignore[no-any-return]
            case None:
                return None
    return keywords.get("additionalProperties")


def item_of(node: Node, at: int) -> Node | None:
    prefix: list[Node] = node.keywords.get("prefixItems", [])
    return prefix[at] if at < len(prefix) else node.keywords.get("items")


def _spans_apart(a: Node, b: Node, low: str, high: str) -> bool:
    (least_a, most_a), (least_b, most_b) = span(a, low, high), span(b, low, high)
    return most_a < least_b or most_b < least_a


def _below(a: Any, b: Any) -> bool:
    """Return whether all numbers of `a` are less than all of `b`."""
    for most, least in product(("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")):
        if most in a and least in b:
            touching = a[most] == b[least] and (most, least) != ("maximum", "minimum")
            if touching or a[most] < b[least]:
                return True
    return False
