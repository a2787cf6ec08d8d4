"""The table of docs/structured.md: what the backends make of each keyword, asked of them.

python -m structured.tests.enforced        writes it into the document
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferway_structured.backends.cascade import verdict
from inferway_structured.errors import SpecError
from inferway_structured.spec import Kind, Spec, json_spec
from inferway_structured.validate.check import check
from inferway_structured.validate.keywords import ASSERTIONS

DOCUMENT = Path(__file__).parents[2] / "docs" / "structured.md"
BEGIN, END = "<!-- keywords -->\n", "<!-- end of keywords -->\n"

_A: Mapping[str, Any] = {"a": {"type": "integer"}}

# keyword -> its cases: what is special about each, and a schema.
CASES: Mapping[str, Mapping[str, Any]] = {
    "type": {"": {"type": ["integer", "null"]}},
    "enum": {"": {"enum": [1, "a"]}},
    "const": {"": {"const": {"a": 1}}},
    "properties": {"": {"type": "object", "properties": _A}},
    "required": {
        "": {"type": "object", "properties": _A, "required": ["a"]},
        "of names that are not in `properties`": {"type": "object", "required": ["z"]},
    },
    "additionalProperties": {
        "": {"type": "object", "properties": _A, "additionalProperties": {"type": "string"}}
    },
    "patternProperties": {"": {"type": "object", "patternProperties": {"^x": {"type": "integer"}}}},
    "propertyNames": {"": {"type": "object", "propertyNames": {"pattern": "^x"}}},
    "minProperties": {"": {"type": "object", "minProperties": 2}},
    "maxProperties": {"": {"type": "object", "maxProperties": 2}},
    "dependentRequired": {
        "": {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}}
    },
    "dependentSchemas": {
        "": {
            "type": "object",
            "properties": {"a": {}},
            "dependentSchemas": {"a": {"required": ["b"]}},
        }
    },
    "dependencies": {
        "": {"type": "object", "properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}}
    },
    "unevaluatedProperties": {
        "": {"type": "object", "properties": _A, "unevaluatedProperties": False}
    },
    "items": {"": {"type": "array", "items": {"type": "integer"}}},
    "prefixItems": {"": {"type": "array", "prefixItems": [{"type": "integer"}]}},
    "additionalItems": {
        "": {"type": "array", "items": [{"type": "integer"}], "additionalItems": False}
    },
    "minItems": {"": {"type": "array", "minItems": 2}},
    "maxItems": {"": {"type": "array", "maxItems": 2}},
    "uniqueItems": {
        "with few possible items": {
            "type": "array",
            "items": {"enum": [1, 2]},
            "uniqueItems": True,
            "maxItems": 3,
        },
        "with any items": {"type": "array", "uniqueItems": True},
    },
    "contains": {"": {"type": "array", "contains": {"type": "integer"}}},
    "minContains": {"": {"type": "array", "contains": {"type": "integer"}, "minContains": 2}},
    "maxContains": {"": {"type": "array", "contains": {"type": "integer"}, "maxContains": 2}},
    "unevaluatedItems": {"": {"type": "array", "prefixItems": [{}], "unevaluatedItems": False}},
    "minLength": {"": {"type": "string", "minLength": 2}},
    "maxLength": {"": {"type": "string", "maxLength": 2}},
    "pattern": {
        "": {"type": "string", "pattern": "^a+$"},
        "with `maxLength`": {"type": "string", "pattern": "^a+$", "maxLength": 3},
        "with look-ahead": {"type": "string", "pattern": r"^(?=.*\d)(?!.* ).{8,64}$"},
        "with look-behind": {"type": "string", "pattern": "(?<=a)b"},
        "with a word's edge": {"type": "string", "pattern": r"\bfoo\b"},
    },
    "format": {
        "`date`": {"type": "string", "format": "date"},
        "`email`": {"type": "string", "format": "email"},
        "with an unknown name": {"type": "string", "format": "iban"},
    },
    "minimum": {"": {"type": "integer", "minimum": 2}},
    "maximum": {"": {"type": "integer", "maximum": 2}},
    "exclusiveMinimum": {"": {"type": "number", "exclusiveMinimum": 2}},
    "exclusiveMaximum": {"": {"type": "number", "exclusiveMaximum": 2}},
    "multipleOf": {"": {"type": "number", "multipleOf": 0.01}},
    "allOf": {
        "": {
            "allOf": [
                {"type": "object", "properties": _A},
                {"properties": {"b": {"type": "integer"}}},
            ]
        }
    },
    "anyOf": {"": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
    "oneOf": {
        "with branches that exclude each other": {
            "oneOf": [{"type": "integer"}, {"type": "string"}]
        },
        "with branches that overlap": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "oneOf": [{"required": ["a"]}, {"properties": {"b": {"minimum": 1}}}],
        },
        "with branches whose opposite cannot be said": {
            "oneOf": [{"type": "integer", "multipleOf": 3}, {"type": "integer", "multipleOf": 5}]
        },
    },
    "not": {
        "": {"not": {"type": "string"}},
        "of `pattern`": {"not": {"type": "string", "pattern": "^[a-z]+$"}},
        "with the inside of an object": {
            "not": {"properties": {"a": {"const": 1}}, "required": ["a"]}
        },
        "of `integer`, where a number may come": {"not": {"type": "integer"}},
    },
    "if": {
        "": {
            "type": "object",
            "properties": _A,
            "if": {"properties": {"a": {"const": 1}}},
            "then": {"required": ["b"]},
            "else": {"required": ["c"]},
        }
    },
    "$ref": {
        "": {"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a"},
        "to itself": {
            "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
            "$ref": "#/$defs/a",
        },
    },
    "$dynamicRef": {"": {"$dynamicAnchor": "n", "type": "array", "items": {"$dynamicRef": "#n"}}},
}
# As another keyword, or with it.
ELSEWHERE = {"then": "if", "else": "if", "$recursiveRef": "$dynamicRef"}

KINDS: Mapping[str, Spec] = {
    "`json_object`": Spec(Kind.JSON_OBJECT, ""),
    "`regex`": Spec(Kind.REGEX, "[a-z]+"),
    "`choice`": Spec(Kind.CHOICE, '["yes","no"]'),
    "`grammar` in Lark": Spec(Kind.GRAMMAR, 'start: "a"+'),
    "`grammar` in EBNF": Spec(Kind.GRAMMAR, 'root ::= "a"'),
    "`structural_tag`": Spec(
        Kind.STRUCTURAL_TAG,
        json.dumps(
            {
                "type": "structural_tag",
                "structures": [{"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}],
                "triggers": ["<a>"],
            }
        ),
    ),
}


def table() -> str:
    """As the document has it: one row for each result."""
    results: dict[str, list[str]] = {}
    for keyword, cases in CASES.items():
        for words, schema in cases.items():
            result = told(json_spec(schema, ""))
            results.setdefault(result, []).append(f"`{keyword}` {words}".rstrip())
    for words, spec in KINDS.items():
        results.setdefault(told(spec), []).append(words)
    rows = [f"| {result} | {', '.join(asked)} |" for result, asked in results.items()]
    return "\n".join(["| result | keywords and kinds of shapes |", "|---|---|", *rows, ""])


def told(spec: Spec) -> str:
    try:
        check(spec)
        found = verdict(spec)
    except SpecError:
        return "refused with 400"
    if not found.unenforced:
        return f"enforced by {found.backend}"
    names = ", ".join(sorted({each.keyword for each in found.unenforced}))
    return f"not enforced, and named as `{names}`"


def missing() -> set[str]:
    """Keywords without a case."""
    return set(ASSERTIONS) - set(CASES) - set(ELSEWHERE)


def in_document() -> str:
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
