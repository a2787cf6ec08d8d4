"""What somebody might send to bring a server down: small in bytes, large in what it asks for."""

from __future__ import annotations

import json
from typing import Any

Schema = Any


def _towered(keyword: str, levels: int, width: int = 2) -> Schema:
    leaf: Schema = {"type": "string"}
    for _ in range(levels):
        leaf = {keyword: [{"properties": {"xyz"[i]: leaf}} for i in range(width)]}
    return leaf


def _laughing(keyword: str, levels: int) -> Schema:
    steps = {f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": {**steps, f"a{levels}": {}}, "$ref": "#/$defs/a0"}


def _chained(levels: int) -> Schema:
    steps = {f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(levels)}
    return {"$defs": {**steps, f"a{levels}": {}}, "$ref": "#/$defs/a0"}


def _nested(levels: int) -> Schema:
    schema: Schema = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def _product(factors: int, branches: int) -> Schema:
    return {
        "allOf": [
            {"anyOf": [{"properties": {f"p{i}_{j}": {}}} for j in range(branches)]}
            for i in range(factors)
        ]
    }


EXPONENTIAL = "(a|b)*a(a|b){12}"

# Refused by the check, whoever asks: what it would cost is in limits.py.
REFUSED: dict[str, Schema] = {
    "an exponential pattern": {"pattern": EXPONENTIAL},
    "an exponential name": {"patternProperties": {EXPONENTIAL: {}}},
    "exponential patterns, all of them": {
        "allOf": [{"pattern": EXPONENTIAL.replace("12", str(i))} for i in range(1, 16)]
    },
    "exponential under not": {"not": {"pattern": EXPONENTIAL}},
    "patterns of one string": {"allOf": [{"pattern": f"x{i}"} for i in range(20)]},
    "patterns of one string, deep": {
        "allOf": [{"properties": {"a": {"items": {"pattern": f"x{i}"}}}} for i in range(20)]
    },
    "repeats inside each other": {"pattern": "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}"},
    "repeats of many patterns": {"anyOf": [{"pattern": rf"\w{{1,9{i:03}}}"} for i in range(200)]},
    "patterns that take many steps": {
        "anyOf": [
            {"pattern": f"({i}.*a.{{9}}b.{{9}}[c-{'xyz'[i % 3]}].{{9}}){{9}}"} for i in range(150)
        ]
    },
    "many shorthands": {"pattern": r"\s" * 3_900},
    "many shorthands, many patterns": {"anyOf": [{"pattern": rf"\s{i}" * 50} for i in range(100)]},
    "a long array": {"type": "array", "maxItems": 100_000},
    "a long array, at least": {"type": "array", "minItems": 100_000},
    "many long arrays": {"properties": {f"p{i}": {"maxItems": 9_000 + i} for i in range(300)}},
    "many properties": {"properties": {f"p{i}": {} for i in range(8_000)}},
    "many enum values": {"enum": list(range(20_000))},
    "references spelled out": _laughing("allOf", 40),
    "references spelled out, any": _laughing("anyOf", 40),
    "references spelled out, one": _laughing("oneOf", 40),
    "references after each other": _chained(2_000),
    "a circle": {"allOf": [{"$ref": "#"}]},
    "nested": _nested(100),
    "wide": {"anyOf": [{"properties": {f"k{i}": {"const": i}}} for i in range(3_000)]},
    "elsewhere": {"$ref": "http://169.254.169.254/latest/meta-data"},
}

# Longer than any spec may be: refused before it is written or parsed.
TOO_LONG: dict[str, Schema] = {
    "a tower, 2^12": _towered("anyOf", 12),
    "600 kB of properties": {"properties": {f"p{i}": {"type": "string"} for i in range(20_000)}},
    "600 kB of text": {"const": "x" * 600_000},
}

# Within the limits, and harmless: the library ends by its own, in less than the bound.
HARMLESS: dict[str, Schema] = {
    "a tower, 2^10": _towered("anyOf", 10),
    "a tower, 3^7": _towered("oneOf", 7, 3),
    "a product, 2^16": _product(16, 2),
    "a product, 10^6": _product(6, 10),
    "references spelled out, inside": {
        "$defs": {
            **{
                f"a{i}": {"properties": {n: {"$ref": f"#/$defs/a{i + 1}"} for n in "xy"}}
                for i in range(100)
            },
            "a100": {},
        },
        "$ref": "#/$defs/a0",
    },
    "references after each other": _chained(490),
    "arrays up to the limit": {"properties": {f"p{i}": {"maxItems": 10_000} for i in range(9)}},
    "properties up to the limit": {"properties": {f"p{i}": {} for i in range(2_000)}},
    "enum up to the limit": {"enum": [f"v{i}" for i in range(10_000)]},
    "patterns up to the limit": {"allOf": [{"pattern": f"x{i}"} for i in range(10)]},
    "a long string": {"type": "string", "maxLength": 2**32 - 1, "minLength": 100_000},
    "a pattern and a length": {"type": "string", "pattern": "^([a-z]{2,7} )*$", "minLength": 5_000},
    "wide classes": {"type": "string", "pattern": r"\w{1,30000}"},
    "repeats, 125000 rounds": {"type": "string", "pattern": "((a{1,50}){1,50}){1,50}"},
    "many patterns": {"anyOf": [{"type": "string", "pattern": f"x{i}.*y"} for i in range(1_000)]},
    "overlapping names": {"patternProperties": {f"^p{i}.*x": {} for i in range(500)}},
    "large numbers": {"type": "integer", "minimum": 10**300, "maximum": 10**301},
    "fine steps": {"type": "number", "multipleOf": 1e-7},
    "one of many": {"oneOf": [{"properties": {"k": {"const": i}}} for i in range(1_000)]},
    "conditions": {
        "allOf": [
            {"if": {"properties": {f"a{i}": {"const": 1}}}, "then": {"required": [f"b{i}"]}}
            for i in range(200)
        ]
    },
}

REGEXES: dict[str, str] = {
    "exponential": EXPONENTIAL,
    "exponential, dots": ".*a.{14}",
    "look-ahead": "(?=a)b",
    "back-reference": r"(a)\1",
    "repeats": "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}",
    "open": "(" * 5_000,
    "groups": "(" * 5_000 + "a" + ")" * 5_000,
}

GRAMMARS: dict[str, str] = {
    "many rules": "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(3_000)),
    "repeats": 'root ::= ("a"{100000}){100000}',
    "groups": "start: " + "(" * 3_000 + '"a"' + ")" * 3_000 + "\n",
    "exponential patterns inside": (
        "start: %json "
        + json.dumps(
            {
                "allOf": [
                    {"type": "string", "pattern": EXPONENTIAL.replace("12", str(i))}
                    for i in range(1, 16)
                ]
            }
        )
        + "\n"
    ),
}
