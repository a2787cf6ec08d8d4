"""Keyword by keyword: said in full, or named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import jsonschema_rs
import pytest

from inferway_structured.backends import llguidance
from inferway_structured.backends.cascade import verdict
from inferway_structured.backends.schemas.lowering import Lowering
from inferway_structured.backends.schemas.nodes import Document
from inferway_structured.backends.schemas.texts import How, Words
from inferway_structured.grammar import Unenforced
from inferway_structured.spec import Kind, Spec

WORDS = Words(llguidance.takes_string, llguidance.patterns_disjoint)
AB = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}


def lowered(schema: Any) -> tuple[Any, list[Unenforced]]:
    said, left_out = Lowering(Document(schema), WORDS, How()).run()
    return said, list(left_out)


EXACT: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "not a type": ({"not": {"type": "number"}}, ["a", None, {}], [1, 1.5]),
    "not values": (
        {"not": {"enum": ["a", "ab", None, 1]}},
        ["", "b", "abc", 2, 0.5],
        ["a", "ab", 1],
    ),
    "not required": ({**AB, "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": ""}]),
    "not together": (
        {**AB, "not": {"required": ["a", "b"]}},
        [{"a": ""}, {"b": 1}],
        [{"a": "", "b": 1}],
    ),
    "not a bound": ({"not": {"minimum": 3}}, [2, 2.5], [3, 4, "a"]),
    "not a length": ({"not": {"maxLength": 2}}, ["abc"], ["ab", 1]),
    "not not": ({"not": {"not": {"type": "null"}}}, [None], [1]),
    "not any of": ({"not": {"anyOf": [{"type": "null"}, {"const": 1}]}}, [2, "a"], [None, 1]),
    "one of by type": ({"oneOf": [{"type": "string"}, {"type": "null"}]}, ["a", None], [1]),
    "one of by what is required": (
        {**AB, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": "x"}, {"b": 1}],
        [{}, {"a": "x", "b": 1}],
    ),
    "one of by a tag": (
        {
            "oneOf": [
                {"properties": {"t": {"const": name}}, "required": ["t"], "type": "object"}
                for name in "xyz"
            ]
        },
        [{"t": "x"}, {"t": "y", "z": 1}],
        [{"t": "w"}, {}],
    ),
    "one of by a range": (
        {"oneOf": [{"type": "integer", "maximum": 1}, {"type": "integer", "minimum": 1}]},
        [0, 2],
        [1, "a"],
    ),
    "if then else": (
        {
            "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
            "then": {"required": ["b"]},
            "else": {"required": ["c"]},
        },
        [{"a": 1, "b": 2}, {"a": 2, "c": 1}],
        [{"a": 1}, {"a": 2, "b": 1}],
    ),
    "dependent names": (
        {"dependentRequired": {"a": ["b"], "c": ["b"]}},
        [{}, {"a": 1, "b": 1}, {"d": 1}, 7],
        [{"a": 1}, {"c": 1}],
    ),
    "dependent schemas": (
        {"dependentSchemas": {"a": {"properties": {"b": {"const": 1}}}}},
        [{"b": 2}, {"a": 1, "b": 1}],
        [{"a": 1, "b": 2}],
    ),
    "integers between two": (
        {"properties": {"a": {"type": "integer", "minimum": 1.2, "exclusiveMaximum": 2}}},
        [{}, {"b": 1}],
        [{"a": 1}, {"a": 1.5}, {"a": 2}],
    ),
    "no integer, or null": (
        {"type": ["integer", "null"], "minimum": 1.2, "maximum": 1.5},
        [None],
        [1],
    ),
    "an integer that is none": (
        {"properties": {"a": {"type": "integer", "const": 1.5}}},
        [{}],
        [{"a": 1.5}, {"a": 1}],
    ),
    "integers of which one is none": ({"type": "integer", "enum": [1.5, 2]}, [2], [1.5, 1]),
    "an integer, or a fraction that is none": (
        {"type": "integer", "anyOf": [{"const": 1.5}, {"const": 2}]},
        [2],
        [1.5, 1],
    ),
    "integers, and a reference to values of which one is none": (
        {"type": "integer", "$ref": "#/$defs/a", "$defs": {"a": {"enum": [1.5, 2]}}},
        [2],
        [1.5, 1],
    ),
    "an integer by another schema, and ranges of which one has none": (
        {
            "allOf": [
                {"type": "integer"},
                {"oneOf": [{"minimum": 1.2, "maximum": 1.8}, {"minimum": 5}]},
            ]
        },
        [5, 6],
        [1.5, 1, 2],
    ),
    "at least one property": ({**AB, "minProperties": 1}, [{"a": ""}, {"z": 1}], [{}]),
    "at most one property": (
        {**AB, "maxProperties": 1},
        [{}, {"b": 1}, {"z": 0}],
        [{"a": "", "b": 1}],
    ),
    "no property": ({**AB, "maxProperties": 0}, [{}], [{"a": ""}, {"z": 1}]),
    "names by pattern": ({"propertyNames": {"pattern": "^a"}}, [{"ab": 1}, {}], [{"b": 1}]),
    "names by list": ({"propertyNames": {"enum": ["a", "b"]}}, [{"b": 1}], [{"c": 1}]),
    "unique of few": (
        {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
        [[], ["a"], ["b", "a"]],
        [["a", "a"], ["c"]],
    ),
    "unique of one": ({"type": "array", "maxItems": 1, "uniqueItems": True}, [[1], []], [[1, 1]]),
    "contains among few": (
        {"type": "array", "maxItems": 2, "contains": {"const": 1}},
        [[1], [2, 1]],
        [[], [2], [2, 2, 1]],
    ),
    "unevaluated": (
        {
            "allOf": [{"properties": {"a": {}}}],
            "properties": {"b": {}},
            "unevaluatedProperties": False,
        },
        [{"a": 1, "b": 1}],
        [{"c": 1}],
    ),
    "patterns that meet, with one schema": (
        {"patternProperties": {"^a": {"type": "null"}, "b$": {"type": "null"}}},
        [{"a": None, "xb": None, "c": 1}],
        [{"ab": 1}],
    ),
    "a pattern for all names": (
        {"patternProperties": {".*": {"type": "integer"}, "^a": {"minimum": 3}}},
        [{"a": 3, "b": 1}],
        [{"a": 1}, {"b": ""}],
    ),
    "a format as a pattern": (
        {"type": "string", "format": "json-pointer"},
        ["", "/a/b~0c"],
        [],  # the validator takes formats for annotations
    ),
    "a format nobody knows is an annotation": ({"type": "string", "format": "colour"}, ["x"], [1]),
    "older tuples": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "items": [{"type": "null"}],
            "additionalItems": False,
        },
        [[None], []],
        [[1], [None, 1]],
    ),
    "older exclusive bounds": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "minimum": 3,
            "exclusiveMinimum": True,
        },
        [4],
        [3],
    ),
    "siblings of a reference in older drafts": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"x": {"type": ["string", "null"]}},
            "properties": {"a": {"$ref": "#/definitions/x", "type": "string"}},
        },
        [{"a": None}],
        [{"a": 1}],
    ),
    "a reference by name": (
        {"$defs": {"x": {"$anchor": "here", "type": "null"}}, "items": {"$ref": "#here"}},
        [[None]],
        [[1]],
    ),
    "a reference by address": (
        {
            "$id": "https://example.com/a.json",
            "$defs": {"x": {"$id": "b.json", "type": "null"}},
            "items": {"$ref": "https://example.com/b.json"},
        },
        [[None]],
        [[1]],
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_it_is_said_in_full(name: str) -> None:
    schema, valid, invalid = EXACT[name]

    said, left_out = lowered(schema)

    told = jsonschema_rs.Draft202012Validator(said)
    asked = jsonschema_rs.validator_for(schema)
    assert left_out == []
    assert [one for one in valid if not (asked.is_valid(one) and told.is_valid(one))] == []
    assert [one for one in invalid if asked.is_valid(one) or told.is_valid(one)] == []
    assert list(verdict(Spec(Kind.JSON, json.dumps(schema))).unenforced) == []


NAMED: dict[str, tuple[Any, str, str]] = {
    "unique among many": ({"type": "array", "uniqueItems": True}, "", "uniqueItems"),
    "contains in any array": ({"contains": {"const": 1}}, "", "contains"),
    "not a pattern": ({"not": {"pattern": "^a(?<=a)"}}, "", "not"),
    "numbers that are no integers": (
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        "",
        "oneOf",
    ),
    "a look ahead": (
        {"properties": {"a": {"pattern": "^(?:(?!x)a)*$"}}},
        "/properties/a",
        "pattern",
    ),
    "another document": ({"items": {"$ref": "https://example.com/x"}}, "/items", "$ref"),
    "a format nobody can say": ({"format": "regex"}, "", "format"),
    "unevaluated by what holds": (
        {"anyOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        "",
        "unevaluatedProperties",
    ),
    "a value that no draft allows": ({"items": {"required": True}}, "/items", "required"),
    "what is no schema": ({"properties": {"a": 5}}, "/properties/a", "schema"),
    "the older name of a keyword": (
        {"definitions": {}, "dependencies": {f"p{n}": [f"q{n}"] for n in range(9)}},
        "",
        "dependencies",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_cannot_be_said_is_named(name: str) -> None:
    schema, place, keyword = NAMED[name]

    _, left_out = lowered(schema)

    assert left_out == [Unenforced(place, keyword)]


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("^(?:(?!x)a)+$", "^(?:a)+$"),
        (r"^\bfoo\b(?<=o)$", "^foo$"),
        (r"^\\b(?<=x)\Ba$", r"^\\ba$"),
    ],
)
def test_an_assertion_is_left_out_and_the_rest_of_the_pattern_kept(pattern: str, kept: str) -> None:
    said, left_out = lowered({"pattern": pattern})

    assert said == {"pattern": kept}
    assert left_out == [Unenforced("", "pattern")]


def test_properties_keep_their_order() -> None:
    said, _ = lowered({"properties": {"b": {}, "a": {}}, "not": {"required": ["a", "b"]}})

    assert list(said["allOf"][0]["properties"]) == ["b", "a"]


def test_escapes_and_classes_of_other_regexes_are_rewritten() -> None:
    said, _ = lowered({"pattern": r"\<[a&&b[]\>"})

    assert said == {"pattern": r"<[a\x{26}\x{26}b\x{5b}]>"}


LOOKED_THROUGH = """
from inferway_structured.backends.schemas.lowering import Lowering
from inferway_structured.backends.schemas.nodes import Document, Work
from inferway_structured.backends.schemas.texts import How, Words

branches = [
    {"properties": {"a": {"const": at}}, "items": {"const": at}, "minLength": at, "maximum": at}
    for at in range(5)
]
document = Document({"oneOf": branches})
document.work = Work(10_000)
Lowering(document, Words(lambda *_: None, lambda *_: False), How()).run()
print(document.work.left)
"""


def test_each_process_looks_through_as_much_of_a_schema() -> None:
    """How much is limited, and an API server and an engine core must not differ in their verdicts.
    Python's sets of strings have another order in each."""
    left = {
        subprocess.run(
            [sys.executable, "-c", LOOKED_THROUGH],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        ).stdout
        for seed in "012"
    }

    assert len(left) == 1
