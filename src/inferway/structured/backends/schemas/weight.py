"""How much a schema makes of itself inside llguidance, counted before the library sees it.

The library writes out what is all of several schemas: every way through the one with every way
through the others, at each property that they share. So there are two figures of a schema: how
many schemas it is (`size`), and how many ways one value may take through it (`ways`). Of what is
all of several, the ways multiply, and each part is written once for every way through the others.
Both are upper bounds: what is light by them is light, what is heavy may be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from math import inf, isinf, prod
from typing import Any, NamedTuple

from inferway.structured.backends.schemas.nodes import RESTRICTING

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
_PARTS = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
_COUNTS = frozenset({"minItems", "maxItems", "minProperties", "maxProperties"})
_HEAVY_WORDS = ('Of"', '"$ref"', '"enum"', '"maxItems"', '"minItems"', '"pattern', 'Properties":')


class _Weight(NamedTuple):
    size: float
    ways: float


_ONE = _Weight(1, 1)
_UNBOUNDED = _Weight(inf, inf)
_UNKNOWN = _Weight(10_000, 1)  # a circle, or a reference to elsewhere


@lru_cache(maxsize=4)  # each is asked for twice in a row
def weight_of(text: str) -> float:
    """Of a schema's text, in schemas of ordinary cost; infinite where there is no bound."""
    if not any(word in text for word in _HEAVY_WORDS):
        return text.count("{")
    try:
        return _Weigher(json.loads(text)).total()
    except (RecursionError, AttributeError, TypeError, ValueError, ArithmeticError):
        return inf  # too deep, or not of the form that a schema has


def num_remainders(divisor: float) -> float:
    """Of an automaton for `multipleOf`. Digits at the end that are zero cost nothing."""
    parts = Decimal(str(divisor)).normalize().as_tuple()
    return float("".join(map(str, parts.digits)))


class _Weigher:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._referred: dict[str, None] = {}  # outside of what is all of several
        self._met: dict[str, _Weight | None] = {}  # inside; None: being weighed

    def total(self) -> float:
        total = self._of(self._root, False).size
        done = 0
        while done < len(self._referred):
            reference = list(self._referred)[done]
            done += 1
            if reference != "#":
                total += self._of(self._resolved(reference), False).size
        return total

    def _of(self, schema: Any, is_met: bool) -> _Weight:
        """`is_met`: it may be that another schema must hold of the same value, too."""
        if not isinstance(schema, dict):
            return _UNKNOWN if schema is None else _ONE
        own = bool(RESTRICTING.intersection(schema) - _PARTS)
        all_of = schema.get("allOf", ())
        num_parts = own + len(all_of) + sum(word in schema for word in ("anyOf", "oneOf", "$ref"))
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
        # which of `oneOf` may hold together is looked for in pairs
        pairs = len(found) ** 2 / 50 if word == "oneOf" else 0
        return _Weight(1 + pairs + sum(one.size for one in found), sum(one.ways for one in found))

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
        """None: not found here, and the library may find it all the same."""
        if not reference.startswith("#/") or "%" in reference:
            return self._root if reference == "#" else None
        found = self._root
        for step in reference[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or step not in found:
                return None
            found = found[step]
        return found

    def _own(self, schema: Mapping[str, Any], is_met: bool) -> _Weight:
        size, ways = 1.0, 1.0
        for word, rule in schema.items():
            if word not in RESTRICTING or word in _PARTS:
                continue
            for inner in _inside(word, rule):
                found = self._of(inner, is_met)
                size += found.size
                ways = max(ways, found.ways)
            if word == "enum":
                size += len(rule) / _ENUM_VALUES
            elif word in _COUNTS:
                size += rule / _ITEMS
            elif word == "pattern":
                size += _pattern(rule, is_met)
            elif word == "patternProperties":
                size += sum(_pattern(pattern, is_met) for pattern in rule)
            elif word == "multipleOf":
                remainders = num_remainders(rule)
                if remainders > MAX_REMAINDERS:
                    return _UNBOUNDED
                size += remainders / _REMAINDERS
                ways *= remainders if is_met else 1  # two meet in their least common multiple
        return _Weight(size, ways)


_ANY = ("anyOf", "oneOf")


def _all_of(parts: Sequence[_Weight]) -> _Weight:
    ways = prod(part.ways for part in parts)
    if isinf(ways):
        return _UNBOUNDED
    return _Weight(sum(part.size * (ways / part.ways) for part in parts), ways)


def _inside(word: str, rule: Any) -> Iterable[Any]:
    if word in _MANY:
        return rule.values() if isinstance(rule, dict) else ()
    if isinstance(rule, list):
        return () if word in ("enum", "required", "type") else rule
    return (rule,) if isinstance(rule, dict) and word != "const" else ()


def _pattern(pattern: str, is_met: bool) -> float:
    return len(pattern) / _PATTERN_CHARS + (_MET_PATTERN if is_met else _PATTERN)
