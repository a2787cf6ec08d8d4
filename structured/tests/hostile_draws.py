"""Hostile shapes, drawn with a seed: size × nesting × keyword, each such as a client may send."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from inferway_structured.spec import Kind, Spec

Schema = Any


def hostile_specs(seed: int, count: int) -> list[tuple[str, Spec]]:
    """Each with its name; of each kind as many as of any other."""
    rng = Random(seed)
    names = list(KINDS)
    drawn = []
    for at in range(count):
        name = names[at % len(names)]
        made = KINDS[name](rng)
        if not isinstance(made, Spec):
            made = Spec(Kind.JSON, json.dumps(made, separators=(",", ":")))
        drawn.append((f"{name} {at}", made))
    return drawn


def _leaf(rng: Random) -> Schema:
    return rng.choice(
        [
            {"type": "string", "maxLength": rng.choice([3, 40, 65_535])},
            {
                "type": "string",
                "pattern": rng.choice(["a+b", "^[a-z]{1,40}$", r"x.*y.*z", r"\w{9}"]),
            },
            {"type": "integer", "multipleOf": rng.choice([7, 997, 30_011, 65_521])},
            {"type": "number", "minimum": -1.5, "maximum": 10**9},
            {"type": "array", "maxItems": rng.choice([3, 900]), "items": {"type": "integer"}},
            {"enum": [f"v{at}" for at in range(rng.choice([3, 300]))]},
            {},
        ]
    )


def _nested(rng: Random, keyword: str, depth: int, width: int, shared: bool) -> Schema:
    if depth == 0:
        return _leaf(rng)
    inside = [_nested(rng, keyword, depth - 1, width, shared) for _ in range(width)]
    parts = []
    for at, inner in enumerate(inside):
        name = "k" if shared else f"k{depth}{at}"
        part: Schema = {"properties": {name: inner}}
        parts.append({**part, "required": [name]} if rng.random() < 0.7 else part)
    return {keyword: parts}


def alternatives(rng: Random) -> Schema:
    depth, width = rng.choice([(2, 9), (3, 4), (3, 6), (4, 3), (6, 2), (8, 2), (2, 20)])
    keyword = rng.choice(["oneOf", "oneOf", "anyOf", "allOf"])
    return _nested(rng, keyword, depth, width, rng.random() < 0.5)


def products(rng: Random) -> Schema:
    def factor(at: int) -> Schema:
        names = [f"p{at}_{way}" if rng.random() < 0.7 else f"q{way}" for way in range(width)]
        return {rng.choice(["anyOf", "oneOf"]): [{"properties": {n: _leaf(rng)}} for n in names]}

    width = rng.choice([2, 4, 10])
    return {"allOf": [factor(at) for at in range(rng.choice([3, 6, 16]))]}


def conditions(rng: Random) -> Schema:
    def one(at: int) -> Schema:
        held = {"properties": {f"a{at}": {"const": 1}}, "required": [f"a{at}"]}
        return {"if": held, "then": {"required": [f"b{at}"]}, "else": {"not": {"required": ["c"]}}}

    return {"allOf": [one(at) for at in range(rng.choice([4, 9, 14, 60]))]}


def references(rng: Random) -> Schema:
    levels, keyword = rng.choice([6, 12, 20]), rng.choice(["allOf", "anyOf", "oneOf"])
    steps = {
        f"a{at}": {
            keyword: [
                {"$ref": f"#/$defs/a{at + 1}"},
                {"properties": {"x": {"$ref": f"#/$defs/a{at + 1}"}}},
            ],
            "properties": {"y": {"$ref": f"#/$defs/a{at + 1}"}},
        }
        for at in range(levels)
    }
    return {"$defs": {**steps, f"a{levels}": _leaf(rng)}, "$ref": "#/$defs/a0"}


def multiples(rng: Random) -> Schema:
    def number() -> Schema:
        divisor = rng.choice([3_000_017, 300_017, 65_521, 997, 0.00017, 1e-7, 10**18 + 9])
        return {"type": rng.choice(["integer", "number"]), "multipleOf": divisor}

    parts = [number() for _ in range(rng.choice([1, 1, 2, 5]))]
    more = {"minimum": -(10**9) + 7, "maximum": 10**12 + 39} if rng.random() < 0.5 else {}
    return (
        {rng.choice(["allOf", "anyOf", "oneOf"]): parts, **more} if parts[1:] else parts[0] | more
    )


def wide(rng: Random) -> Schema:
    size = rng.choice([300, 1_200, 1_900])
    return rng.choice(
        [
            {"properties": {f"p{at}": _leaf(rng) for at in range(size)}, "minProperties": 3},
            {"oneOf": [{"properties": {"k": {"const": at}}} for at in range(size)]},
            {"items": {"enum": list(range(size))}, "uniqueItems": True, "maxItems": 9_000},
            {"patternProperties": {f"^p{at}.*x": {} for at in range(size)}},
            {"prefixItems": [_leaf(rng) for _ in range(size)], "contains": {"const": 1}},
        ]
    )


def lookups(rng: Random) -> Schema:
    """Little text that takes long to be looked through: each is held against each."""
    size, levels = rng.choice([60, 700, 1_500]), rng.choice([3, 6, 14])

    def chain(keyword: str, width: int) -> Schema:
        steps = {
            f"a{at}": {keyword: [{"$ref": f"#/$defs/a{at + 1}"}] * width, "required": ["x", "y"]}
            for at in range(levels)
        }
        return {**steps, f"a{levels}": _leaf(rng)}

    contains: Schema = {"const": 1}
    for _ in range(levels):
        contains = {"contains": contains, "maxItems": 60}
    first = {"$ref": "#/$defs/a0"}
    return rng.choice(
        [
            {"oneOf": [{"enum": list(range(at, at + size))} for at in (1_000, 4_000)]},
            {"$defs": chain("allOf", 9), "oneOf": [first, {**first, "properties": {"z": {}}}]},
            {"$defs": chain("anyOf", 9), "type": "object", "not": first},
            {"$defs": chain("oneOf", 3), "propertyNames": first, "properties": {"x": {}}},
            {"properties": {f"p{at}": {"items": {"enum": list(range(200))}, "uniqueItems": True}
                            for at in range(size // 50)}},
            {"properties": {f"p{at}": {"not": {"enum": ["ab" * 200, f"{at}" * 300]}}
                            for at in range(size // 50)}},
            {"oneOf": [{"pattern": ".*" * 9 + "x"}, {"pattern": "a?" * 40}, {"const": "a" * 190}]},
            contains,
        ]
    )  # fmt: skip


def others(rng: Random) -> Schema:
    """Of all other properties, or items, than those that are named; nested."""
    names = {name: rng.choice([True, {"required": [name]}]) for name in "abcd"}
    nested, way = _leaf(rng), rng.randrange(5)
    for _ in range(rng.choice([4, 9, 16])):
        nested = [
            {"properties": names, "patternProperties": {".*": nested}},
            {"allOf": [{"properties": names}, {"additionalProperties": nested}]},
            {"required": list(names), "additionalProperties": nested},
            {"allOf": [{"prefixItems": list(names.values())}, {"items": nested}]},
            {"properties": names, "anyOf": [{"patternProperties": {"^[a-c]": nested}}, {}]},
        ][way]
    return nested


def texts(rng: Random) -> Schema:
    patterns = ["^(a|b)*a(a|b){9}$", ".*x.*y.*", r"^\w{1,300}$", "^([a-z]{2,7} )*$", "(ab|ba)*"]
    chosen = rng.sample(patterns, rng.randint(1, 5))
    lengths = {"minLength": rng.choice([0, 40, 5_000]), "maxLength": 100_000}
    return {"type": "string", "allOf": [{"pattern": one} for one in chosen], **lengths}


def regexes(rng: Random) -> Spec:
    parts = [r"(a|b)*a(a|b){12}", r".*x", r"\w{1,300}", "(a{1,50}){1,50}", "[a-z]+", r"(\d|\d\d)*"]
    text = "".join(rng.choice(parts) for _ in range(rng.choice([1, 3, 12, 60])))
    return Spec(Kind.REGEX, text)


def grammars(rng: Random) -> Spec:
    lark = rng.choice(
        [
            'start: %json {"type":"integer","multipleOf":3000017}',
            f"start: %json {json.dumps(alternatives(rng))}",
            "start: r0\n" + "".join(f'r{n}: "a" r{n + 1} | r{n + 1} "b"\n' for n in range(900))
            + 'r900: "c"',
            "start: A\nA: /(a|b)*a(a|b){20}/ & ~/.*aba.*/ & /.*b.{15}/",
            'start: ("a" | "b" start){1,900}',
            'root ::= ("a" | "b" "c"?){500}',
            "start: x\nx: x x | \"a\"",
        ]
    )  # fmt: skip
    return Spec(Kind.GRAMMAR, lark)


def tags(rng: Random) -> Spec:
    schemas = [alternatives(rng) if rng.random() < 0.5 else _leaf(rng) for _ in range(3)]
    parts = [{"begin": f"<f{n}>", "schema": one, "end": "</f>"} for n, one in enumerate(schemas)]
    tag = {"type": "structural_tag", "structures": parts, "triggers": ["<f"]}
    return Spec(Kind.STRUCTURAL_TAG, json.dumps(tag, separators=(",", ":")))


def choices(rng: Random) -> Spec:
    size = rng.choice([10, 1_000, 9_000])
    return Spec(Kind.CHOICE, json.dumps([f"{rng.random()}" for _ in range(size)]))


KINDS: dict[str, Callable[[Random], Any]] = {
    made.__name__: made
    for made in (
        *(alternatives, products, conditions, references, multiples, wide, lookups, others, texts),
        *(regexes, grammars, tags, choices),
    )
}
