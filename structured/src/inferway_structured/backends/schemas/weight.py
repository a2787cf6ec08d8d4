"""The weight of a schema inside llguidance, counted before the library sees it.

The library writes out what is all of several schemas: every way through the one with every way
through the others, at each property that they share. So there are figures of a schema: how
many schemas it is (`size`), and how many ways one value may take through it (`ways`). Of what is
all of several, the ways multiply, and each part is written once for every way through the others.
And what one says of all other properties (`rest`) it writes out for each that another one names
(`names`); where that has names and others of its own (`deep`), these grow, too. So do a schema's
patterns for the properties that it lists. Places and items of arrays are counted as these.
All are upper bounds: what is light by them is light, what is heavy may be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, reduce
from math import inf, isinf, prod
from typing import Any, NamedTuple

from inferway_structured.backends.schemas.nodes import parsed
from inferway_structured.backends.schemas.shapes import matches
from inferway_structured.validate.keywords import RESTRICTING, unescaped

# Multiples of a number are found by an automaton with a state for each remainder: 65,521 take
# 0.5 s and 30 MB, 300,017 take 3.7 s and 150 MB, 3,000,017 43 s and 1.5 GB.
MAX_REMAINDERS = 65_536

_ENUM_VALUES = 25  # that cost what a schema does (cost.py), 40 µs and 3 kB
_ITEMS = 10
_REMAINDERS = 3
_PATTERN = 20.0
_PATTERN_CHARS = 20
_MET_PATTERN = 400.0  # one that another may meet: their automata multiply

_MANY = frozenset({"properties", "patternProperties"})
_REST = frozenset({"additionalProperties", "unevaluatedProperties"})
_MAX_MATCHED = 500  # patterns with names
_HAS_PLACES = re.compile(r'"prefixItems"|"items":\s*\[')
_PARTS = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
_OWN = RESTRICTING - _PARTS
# All but what is a number, a name or a constant: most schemas have nothing else.
_WEIGHED = (RESTRICTING | _PARTS).difference(
    *(("type", "const", "format", "required", "uniqueItems", "minContains", "maxContains"),),
    *(("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),),
)
_COUNTS = frozenset({"minItems", "maxItems", "minProperties", "maxProperties"})
# Without these words nothing meets anything else, and sizes add up.
_MEETING = re.compile(
    r'Of":|"\$ref":|"(?:prefixItems|patternProperties|multipleOf)":|"items": ?\['
    r'|"(?:additional|unevaluated)Properties": ?\{|\\u'
)
_COUNTED = re.compile(r'"(?:min|max)(?:Items|Properties)": ?([0-9]{1,9})')


class _Weight(NamedTuple):
    size: float
    ways: float
    names: float = 0
    rest: float = 0
    deep: float = 0  # of the rest
    patterns: float = 0  # that may meet others, counted in the size as such


_NONE = _Weight(0, 1)
_ONE = _Weight(1, 1)
_UNBOUNDED = _Weight(inf, inf)
_UNKNOWN = _Weight(10_000, 1)  # a circle, or a reference to elsewhere


@lru_cache(maxsize=4)  # each is asked for twice in a row
def weight_of(text: str) -> float:
    """Return a schema's weight, in schemas of ordinary cost; infinite where there is no bound."""
    if not _MEETING.search(text):
        return _at_most(text)
    try:
        return _Weigher(parsed(text), _HAS_PLACES.search(text) is not None).total()
    except (RecursionError, AttributeError, TypeError, ValueError, ArithmeticError):
        return inf  # too deep, or not of the form that a schema has


def _at_most(text: str) -> float:
    """Return what a schema weighs at most in which nothing meets anything else."""
    counts = sum(map(int, _COUNTED.findall(text)))
    values = text.count(",") if '"enum":' in text else 0
    num_patterns = text.count('"pattern":')
    chars = len(text) if num_patterns else 0
    return (
        1 + text.count("{") + counts / _ITEMS + values / _ENUM_VALUES
        + num_patterns * _PATTERN + chars / _PATTERN_CHARS
    )  # fmt: skip


def num_remainders(divisor: float) -> float:
    """Return how many states an automaton for `multipleOf` has. Digits at the end that are zero
    cost nothing."""
    parts = Decimal(str(divisor)).normalize().as_tuple()
    return float("".join(map(str, parts.digits)))


class _Weigher:
    def __init__(self, root: Any, has_places: bool) -> None:
        self._root = root
        self._rest = _REST | {"items"} if has_places else _REST
        self._referred: dict[str, None] = {}  # outside of what is all of several
        self._met: dict[str, _Weight | None] = {}  # inside; None: being weighed

    def total(self) -> float:
        total = self._size(self._root)
        done = 0
        while done < len(self._referred):
            reference = list(self._referred)[done]
            done += 1
            if reference != "#":
                total += self._size(self._resolved(reference))
        return total

    def _size(self, schema: Any) -> float:
        """`_of(schema, False).size`, without the figures that only matter where schemas meet."""
        if not isinstance(schema, dict):
            return _UNKNOWN.size if schema is None else 1
        if _PARTS.isdisjoint(schema):
            return self._own_size(schema)
        all_of = schema.get("allOf", ())
        num_parts = len(all_of) + sum([word in schema for word in _OTHERS])
        if num_parts > 1 or (num_parts and not _OWN.isdisjoint(schema)):
            return self._of(schema, False).size
        if all_of:
            return self._sum(all_of)
        for word in _ANY:
            if word in schema:
                return _any_size([self._size(branch) for branch in schema[word]], word)
        if "$ref" in schema:
            return self._reference(schema["$ref"], False).size
        return self._own_size(schema)

    def _sum(self, schemas: Iterable[Any]) -> float:
        total = 0.0
        for schema in schemas:
            is_light = isinstance(schema, dict) and _WEIGHED.isdisjoint(schema)
            total += 1 if is_light else self._size(schema)
        return total

    def _own_size(self, schema: Mapping[str, Any]) -> float:
        is_formed = isinstance(schema.get("properties", {}), dict)
        if not is_formed or ("patternProperties" in schema and _meets_own(schema)):
            return self._of(schema, False).size
        named, rest, patterns = 1.0, 0.0, 0.0
        for word, rule in schema.items():
            if not isinstance(rule, _HOLDERS) or word not in _HOLDING:
                continue
            size = self._sum(_inside(word, rule))
            if word == "patternProperties":
                patterns += size
            elif word in self._rest:
                rest += size
            else:
                named += size
        own = named + patterns + (rest and rest * (1 + _num_unlisted(schema)))
        return own if _PRICED.isdisjoint(schema) else own + _priced(schema, False).size

    def _of(self, schema: Any, is_met: bool) -> _Weight:
        """`is_met`: it may be that another schema must hold of the same value, too."""
        if not isinstance(schema, dict):
            return _UNKNOWN if schema is None else _ONE
        if _WEIGHED.isdisjoint(schema):
            return _ONE
        if _PARTS.isdisjoint(schema):
            return self._own(schema, is_met)
        own = not _OWN.isdisjoint(schema)
        all_of = schema.get("allOf", ())
        num_parts = own + len(all_of) + sum(word in schema for word in _OTHERS)
        is_met = is_met or num_parts > 1
        parts = [self._of(part, is_met) for part in all_of]
        parts += [self._any_of(schema[word], is_met, word) for word in _ANY if word in schema]
        if "$ref" in schema:
            parts.append(self._reference(schema["$ref"], is_met))
        if own or not parts:
            parts.append(self._own(schema, is_met))
        return parts[0] if len(parts) == 1 else _all_of(parts)

    def _any_of(self, branches: Sequence[Any], is_met: bool, word: str) -> _Weight:
        found = [self._of(branch, is_met) for branch in branches]
        return _Weight(
            _any_size([one.size for one in found], word),
            sum(one.ways for one in found),
            max((one.names for one in found), default=0),
            max((one.rest for one in found), default=0),
            max((one.deep for one in found), default=0),
            sum(one.patterns for one in found),
        )

    def _reference(self, reference: str, is_met: bool) -> _Weight:
        if not is_met:
            self._referred.setdefault(reference)
            return _ONE
        if reference in self._met:
            return self._met[reference] or _UNKNOWN
        self._met[reference] = None
        found = self._met[reference] = self._of(self._resolved(reference), True)
        return found

    def _resolved(self, reference: str) -> Any:
        """Return the schema that a reference leads to; None if it is not found here: the library
        may find it all the same."""
        if not reference.startswith("#/") or "%" in reference:
            return self._root if reference == "#" else None
        found = self._root
        for step in reference[2:].split("/"):
            step = unescaped(step)
            if not isinstance(found, dict) or step not in found:
                return None
            found = found[step]
        return found

    def _own(self, schema: Mapping[str, Any], is_met: bool) -> _Weight:
        meets_own = _meets_own(schema)
        is_met = is_met or meets_own
        found = self._inside(schema, is_met, meets_own)
        if _PRICED.isdisjoint(schema):
            return found
        more = _priced(schema, is_met)
        return found._replace(
            size=found.size + more.size,
            ways=found.ways * more.ways,
            patterns=found.patterns + more.patterns,
        )

    def _inside(self, schema: Mapping[str, Any], is_met: bool, meets_own: bool) -> _Weight:
        """Return the weight of all schemas in a schema, and of itself. `meets_own`: its patterns
        are for names that it lists, too."""
        named, rest, patterns = _ONE, _NONE, _NONE
        for word, rule in schema.items():
            if not isinstance(rule, _HOLDERS) or word not in _HOLDING:
                continue
            found = [self._of(inner, is_met) for inner in _inside(word, rule)]
            if word == "patternProperties":
                patterns = _all_beside(patterns, map(_as_rest, found))
            elif word in self._rest:
                rest = _all_beside(rest, map(_as_rest, found))
            else:
                named = _named_beside(named, found, word in _MANY or word == "prefixItems")
        unlisted = _num_unlisted(schema)
        if unlisted:
            named = named._replace(names=named.names + unlisted)
        own = _met([named, patterns]) if meets_own else _beside(named, patterns)
        return _beside(own, _times(rest, 1 + unlisted))


_ANY = ("anyOf", "oneOf")
_OTHERS = (*_ANY, "$ref")
_HOLDERS = (dict, list)
_HOLDING = _OWN.difference(("enum", "required", "type", "const"))
_PRICED = _COUNTS | {"enum", "pattern", "patternProperties", "multipleOf"}


def _any_size(sizes: Sequence[float], word: str) -> float:
    # which of `oneOf` may hold together is looked for in pairs
    pairs = len(sizes) ** 2 / 50 if word == "oneOf" else 0
    return 1 + pairs + sum(sizes)


def _priced(schema: Mapping[str, Any], is_met: bool) -> _Weight:
    """Return the weight of the keywords that hold no schemas."""
    size, ways, num_patterns = 0.0, 1.0, 0
    for word, rule in schema.items():
        if word == "enum":
            size += len(rule) / _ENUM_VALUES
        elif word in _COUNTS:
            size += rule / _ITEMS
        elif word in ("pattern", "patternProperties"):
            patterns = [rule] if word == "pattern" else rule
            size += sum(_pattern(pattern, is_met) for pattern in patterns)
            num_patterns += len(patterns) if is_met else 0
        elif word == "multipleOf":
            remainders = num_remainders(rule)
            if remainders > MAX_REMAINDERS:
                return _UNBOUNDED
            size += remainders / _REMAINDERS
            ways *= remainders if is_met else 1  # two meet in their least common multiple
    return _Weight(size, ways, patterns=num_patterns)


def _num_unlisted(schema: Mapping[str, Any]) -> int:
    """Properties that are required, and not listed."""
    needed = schema.get("required", ())
    return len(needed) and len(set(needed).difference(schema.get("properties", ())))


def _meets_own(schema: Mapping[str, Any]) -> bool:
    """Return whether one of its patterns may match one of the names that it lists."""
    if "patternProperties" not in schema:
        return False
    patterns = schema["patternProperties"]
    names = {*schema.get("properties", ()), *schema.get("required", ())}
    if len(patterns) * len(names) > _MAX_MATCHED:
        return True
    return any(matches(pattern, name) is not False for pattern in patterns for name in names)


def _named_beside(one: _Weight, others: Sequence[_Weight], have_names: bool) -> _Weight:
    """Most are of ordinary cost, and need no figures."""
    heavy = [other for other in others if other is not _ONE]
    found = _all_beside(one, heavy) if heavy else one
    return found._replace(
        size=found.size + len(others) - len(heavy),
        names=found.names + (len(others) if have_names else 0),
    )


def _all_beside(one: _Weight, others: Iterable[_Weight]) -> _Weight:
    return reduce(_beside, others, one)


def _beside(one: _Weight, other: _Weight) -> _Weight:
    """Return the weight of two schemas of which no value is both."""
    if other is _NONE:
        return one
    return _Weight(
        one.size + other.size,
        max(one.ways, other.ways),
        one.names + other.names,
        one.rest + other.rest,
        one.deep + other.deep,
        one.patterns + other.patterns,
    )


def _as_rest(found: _Weight) -> _Weight:
    """Its patterns are written out, too, but then most meet none."""
    size = found.size - (_MET_PATTERN - _PATTERN) * found.patterns
    deep = size if found.names or found.rest else 0
    return found._replace(rest=found.rest + size, deep=found.deep + deep)


def _all_of(parts: Sequence[_Weight]) -> _Weight:
    ways = prod(part.ways for part in parts)
    if isinf(ways):
        return _UNBOUNDED
    alone = sum(part.size * (ways / part.ways) for part in parts)
    found = _met(parts)
    written = found.size - sum(part.size for part in parts)
    return found._replace(size=alone + written * ways, ways=ways)


def _times(one: _Weight, num: float) -> _Weight:
    if num == 1 or one is _NONE:
        return one
    return _Weight(
        one.size * num,
        one.ways,
        *(figure * num for figure in (one.names, one.rest, one.deep, one.patterns)),
    )


def _met(parts: Sequence[_Weight]) -> _Weight:
    """Return the weight of schemas that meet, with the rest of each written out for the names of
    the others."""
    names = sum(part.names for part in parts)
    written = deep = 0.0
    for part in parts:
        written += part.rest * (names - part.names)
        deep += part.deep * (names - part.names)
    return _Weight(
        sum(part.size for part in parts) + written,
        max(part.ways for part in parts),
        names + deep,
        sum(part.rest for part in parts) + deep,
        sum(part.deep for part in parts) + deep,
        sum(part.patterns for part in parts),
    )


def _inside(word: str, rule: Any) -> Iterable[Any]:
    if word in _MANY:
        return rule.values() if isinstance(rule, dict) else ()
    if isinstance(rule, list):
        return () if word in ("enum", "required", "type") else rule
    return (rule,) if isinstance(rule, dict) and word != "const" else ()


def _pattern(pattern: str, is_met: bool) -> float:
    return len(pattern) / _PATTERN_CHARS + (_MET_PATTERN if is_met else _PATTERN)
