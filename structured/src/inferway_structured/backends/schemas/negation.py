"""The negation of a schema, said without `not`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from inferway_structured.backends.schemas.automata import NEVER, opposite
from inferway_structured.backends.schemas.disjoint import all_of_it, item_of, property_of
from inferway_structured.backends.schemas.nodes import JsonValue, Node
from inferway_structured.backends.schemas.numbers import is_kept
from inferway_structured.backends.schemas.shapes import (
    OF_TYPE,
    TYPES,
    finite,
    matches,
    named_types,
    same,
    same_rule,
    span,
    spelled,
    takes,
    type_of,
    types,
)
from inferway_structured.backends.schemas.strings import (
    FORMAT_PATTERNS,
    KNOWN_FORMATS,
    UNENFORCED_FORMATS,
    none_of,
)

Said = Any  # a schema of llguidance's: an object or a boolean


class Negation(NamedTuple):
    said: Said
    exact: bool  # else it lets more through


NOTHING = Negation(False, True)
_WORK_OF_CHAR = 2  # of a text that is not to come: the pattern has a group for each
_WORK_OF_MATCH = 4
UNTOLD = Negation(True, False)


_MAX_TWICE = 1  # opposites inside each other that say their branches, too: each doubles its text
_MAX_BOTH = 8  # pairs of branches of one `oneOf` that may hold together
_MAX_ITEMS = 8  # of which one may break what all must be
_MAX_VALUES = 100


class Negate:
    """`lower` says a node itself, for what stands in a double negation, and whether in full."""

    def __init__(
        self,
        lower: Callable[[Node], tuple[Said, bool]],
        are_disjoint: Callable[[Node, Node, Node | None], bool],
    ) -> None:
        self._lower = lower
        self._are_disjoint = are_disjoint
        self._within: set[str] = set()
        self._num_twice = 0  # opposites around this one that say their branches, too

    def __call__(
        self, node: Node, kinds: frozenset[str] = TYPES, given: Sequence[Node] = ()
    ) -> Negation:
        """Return the opposite among values of the types `kinds` that are all of `given`, beside
        which it is to be said. A value that breaks any one keyword breaks the schema."""
        if node.place in self._within or len(self._within) > 16:
            return UNTOLD  # a recursive schema
        among = _among_values(node, given)
        if among is not None:
            return among
        self._within.add(node.place)
        try:
            return any_of(
                [
                    self._keyword(node, word, rule, kinds, given)
                    for word, rule in node.keywords.items()
                    if not _is_given(node, word, rule, given)
                ]
            )
        finally:
            self._within.discard(node.place)

    def _keyword(
        self, node: Node, word: str, rule: Any, kinds: frozenset[str], given: Sequence[Node]
    ) -> Negation:
        if OF_TYPE.get(word, kinds).isdisjoint(kinds):
            return NOTHING
        match word:
            case "never":
                return Negation(True, True)
            case "allOf":
                return any_of([self(inner, kinds, given) for inner in rule])
            case "anyOf":
                return all_of([self(inner, kinds, given) for inner in rule])
            case "oneOf":
                return self._one_of(rule, kinds, given)
            case "$ref":
                return self(rule, kinds, given)
            case "not":
                return Negation(*self._lower(rule))
            case "if":
                return self._if(node, rule, kinds, given)
            case "dependentSchemas":
                parts = [(_there(name), self(one, kinds, given)) for name, one in rule.items()]
                return any_of([all_of(part) for part in parts])
            case "type":
                return _not_type(rule, kinds)
            case "const" | "enum":
                values = rule if word == "enum" else [rule]
                chars = sum(len(value) for value in values if isinstance(value, str))
                node.document.work.spend(_WORK_OF_CHAR * chars)
                return not_values(values, kinds)
        return self._in_values(node, word, rule, given)

    def _in_values(self, node: Node, word: str, rule: Any, given: Sequence[Node]) -> Negation:
        match word:
            case "properties":
                return any_of([self._property(name, one, given) for name, one in rule.items()])
            case "additionalProperties" | "patternProperties" | "propertyNames":
                return self._names(node, word, rule, given)
            case "items" | "prefixItems":
                return self._items(node, word, given)
            case "contains":
                return self._contains(node, rule)
            case "pattern":
                return _not_pattern(node, rule)
            case "format":
                return _not_format(node, rule)
        plain = _PLAIN.get(word)
        return plain(rule) if plain else UNTOLD

    def _one_of(
        self, branches: Sequence[Node], kinds: frozenset[str], given: Sequence[Node]
    ) -> Negation:
        """None of them, or two."""
        beside = given[0] if given else None
        both = [
            (a, b)
            for at, a in enumerate(branches)
            for b in branches[at + 1 :]
            if not self._are_disjoint(a, b, beside)
        ]
        if len(both) > _MAX_BOTH or self._num_twice == _MAX_TWICE:
            return UNTOLD
        self._num_twice += 1
        none = all_of([self(branch, kinds, given) for branch in branches])
        self._num_twice -= 1
        pairs = [all_of([Negation(*self._lower(one)) for one in pair]) for pair in both]
        return any_of([none, *pairs])

    def _if(
        self, node: Node, condition: Node, kinds: frozenset[str], given: Sequence[Node]
    ) -> Negation:
        then, other = (node.keywords.get(word) for word in ("then", "else"))
        broken = []
        if then is not None:
            said = Negation(*self._lower(condition))
            broken.append(all_of([said, self(then, kinds, given)]))
        if other is not None:
            broken.append(all_of([self(condition, kinds, given), self(other, kinds, given)]))
        return any_of(broken)

    def _property(self, name: str, rule: Node, given: Sequence[Node]) -> Negation:
        return _without(name, self._inside(rule, [property_of(one, name) for one in given]))

    def _inside(self, rule: Node, known: Sequence[Node | None]) -> Negation:
        """Return the opposite of what a property or an item must be."""
        if any(one is not None and self._are_disjoint(rule, one, None) for one in known):
            return Negation(True, True)
        given = [part for one in known if one is not None for part in all_of_it(one)]
        kinds = TYPES.intersection(*map(types, given))
        return self(rule, kinds, given) if kinds else NOTHING

    def _names(self, node: Node, word: str, rule: Any, given: Sequence[Node]) -> Negation:
        """What holds for any names is broken by those that `given` lists; of others it is not
        said."""
        listing = [one.keywords for one in given if _lists_all(one, word, rule)]
        known = (listing[0] if listing else {}).get("properties", ())
        broken = [] if listing else [Negation({"type": "object"}, False)]
        for name in known if listing else ():
            for inner in _rules_of(node, word, rule, name):
                if inner is None:
                    broken.append(Negation({"type": "object", "required": [name]}, False))
                else:
                    broken.append(self._property(name, inner, given))
        return any_of(broken)

    def _items(self, node: Node, word: str, given: Sequence[Node]) -> Negation:
        prefix = node.keywords.get("prefixItems", ())
        first, last = 0, float(len(prefix))
        if word == "items":
            first, last = (
                len(prefix),
                min(span(one, "minItems", "maxItems")[1] for one in (node, *given)),
            )
            longest = max(len(one.keywords.get("prefixItems", ())) for one in (node, *given))
            if last > longest and self._item(node, longest, given) == NOTHING:
                last = longest  # and none after it
        if last > _MAX_ITEMS:
            return Negation({"type": "array", "minItems": 1}, False)
        return any_of([self._item(node, at, given) for at in range(first, int(last))])

    def _item(self, node: Node, at: int, given: Sequence[Node]) -> Negation:
        """Return that there is such an item, and it is not what it should be."""
        rule = item_of(node, at)
        if rule is None:
            return NOTHING
        inner = self._inside(rule, [item_of(one, at) for one in given])
        if inner.said is False:
            return inner
        said = {"type": "array", "prefixItems": [*[True] * at, inner.said], "minItems": at + 1}
        return Negation(said, inner.exact)

    def _contains(self, node: Node, rule: Node) -> Negation:
        if "maxContains" in node.keywords or node.keywords.get("minContains", 1) != 1:
            return Negation({"type": "array"}, False)
        inner = self(rule)
        return Negation({"type": "array", "items": inner.said}, inner.exact)


def _among_values(node: Node, given: Sequence[Node]) -> Negation | None:
    """Return the opposite where all values are known that there can be."""
    values = next(filter(None, map(finite, given)), None)
    if values is None or len(values) > _MAX_VALUES:
        return None
    told = [takes(node, value) for value in values]
    if None in told:
        return None
    left = [value for value, is_taken in zip(values, told, strict=True) if not is_taken]
    return Negation({"enum": left} if left else False, True)


def _is_given(node: Node, word: str, rule: Any, given: Sequence[Node]) -> bool:
    """Return whether what must hold anyway says the keyword, too."""
    if word == "required":
        return {name for one in given for name in one.keywords.get(word, ())}.issuperset(rule)
    if word in _AT_LEAST or word in _AT_MOST:
        bounds = [one.keywords[word] for one in given if word in one.keywords]
        return any(bound >= rule if word in _AT_LEAST else bound <= rule for bound in bounds)
    if word not in _ALONE and word not in _WITH:
        return False
    return any(
        word in one.keywords
        and same_rule(rule, one.keywords[word])
        and all(
            same_rule(node.keywords.get(also), one.keywords.get(also))
            for also in _WITH.get(word, ())
        )
        for one in given
    )


_AT_LEAST = frozenset({*("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")})
_AT_MOST = frozenset({*("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")})
_ALONE = frozenset(
    {
        *("type", "const", "enum", "pattern", "format", "multipleOf", "uniqueItems"),
        *("prefixItems", "patternProperties", "propertyNames", "dependentRequired"),
    }
)
_WITH = {"items": ("prefixItems",), "contains": ("minContains", "maxContains")}


def _lists_all(node: Node, word: str, rule: Any) -> bool:
    """Return whether a schema says of all names that it does not list what makes no difference for
    a keyword of another."""
    keywords = node.keywords
    others = keywords.get("additionalProperties")
    if others is None or "patternProperties" in keywords:
        return False
    return "never" in others.keywords or (word == "additionalProperties" and same(rule, others))


def _rules_of(node: Node, word: str, rule: Any, name: str) -> Iterator[Node | None]:
    """Yield what a keyword says of a property; None where it is not told whether it does."""
    if word == "propertyNames":
        is_taken = takes(rule, name)
        if is_taken is not True:
            yield None if is_taken is None else node.document.node(False, "never")
        return
    patterns = node.keywords.get("patternProperties", {})
    node.document.work.spend(_WORK_OF_MATCH * len(patterns))
    told = [matches(pattern, name) for pattern in patterns]
    if word == "patternProperties":
        for inner, is_for_it in zip(patterns.values(), told, strict=True):
            if is_for_it is not False:
                yield inner if is_for_it else None
    elif name not in node.keywords.get("properties", ()) and True not in told:
        yield None if None in told else rule


def any_of(parts: Sequence[Negation]) -> Negation:
    return _together("anyOf", parts, True)


def all_of(parts: Sequence[Negation]) -> Negation:
    return _together("allOf", parts, False)


def _together(word: str, parts: Sequence[Negation], decides: bool) -> Negation:
    """`decides`: what all of it is if one part is; the opposite makes no difference."""
    exact = all(part.exact for part in parts)
    said = [part.said for part in parts if part.said is not (not decides)]
    if any(one is decides for one in said):
        return Negation(decides, exact)
    if len(said) < 2:
        return Negation(said[0] if said else not decides, exact)
    return Negation({word: said}, exact)


def _without(name: str, inner: Negation) -> Negation:
    """There is such a property, and it is not what it should be."""
    if inner.said is False:
        return Negation(False, inner.exact)
    return Negation(
        {"type": "object", "properties": {name: inner.said}, "required": [name]}, inner.exact
    )


def _there(name: str) -> Negation:
    return Negation({"type": "object", "required": [name]}, True)


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
        said += [{"const": one} for one in (False, True) if not any(it is one for it in values)]
    if "string" in kinds:
        left.discard("string")
        texts = [value for value in values if isinstance(value, str)]
        said.append({"type": "string", "pattern": none_of(texts)})
    if kinds & {"integer", "fraction"}:
        left -= {"integer", "fraction"}
        numbers = sorted({one for one in values if type_of(one) in ("integer", "fraction")})
        exact = exact and all(is_kept("exclusiveMinimum", number) for number in numbers)
        said += _between(numbers) if exact else [{"type": "number"}]
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
        if not is_kept(word, limit):
            return Negation({"type": kind}, False)
        return Negation({"type": kind, word: int(limit) if shift else limit}, True)

    return negated


_TWO_ITEMS = Negation({"type": "array", "minItems": 2}, False)
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
    # Not said, but only values of its type can break it.
    "multipleOf": lambda _: Negation({"type": "number"}, False),
    "uniqueItems": lambda is_on: _TWO_ITEMS if is_on else NOTHING,
    "unevaluatedItems": lambda _: Negation({"type": "array", "minItems": 1}, False),
    "unevaluatedProperties": lambda _: Negation({"type": "object"}, False),
    # With `if` and `contains`.
    **dict.fromkeys(("then", "else", "minContains", "maxContains"), lambda _: NOTHING),
}


def _not_format(node: Node, form: str) -> Negation:
    if form in FORMAT_PATTERNS:
        return _not_pattern(node, FORMAT_PATTERNS[form])
    # a name that nobody knows is only that
    return Negation({"type": "string"}, False) if form in _FORMATS else NOTHING


def _not_pattern(node: Node, pattern: str) -> Negation:
    text = opposite(pattern, node.document.work)
    if text is None:
        return Negation({"type": "string"}, False)
    return NOTHING if text == NEVER else Negation({"type": "string", "pattern": text}, True)


_FORMATS = KNOWN_FORMATS | UNENFORCED_FORMATS
