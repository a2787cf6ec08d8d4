"""Shapes that must be refused, quickly and with their place. Each has brought an engine, its event
loop or its memory down somewhere (reference: vLLM's issues, structured.md section 3)."""

from __future__ import annotations

from typing import Any

from tests.engines.shaped import WEATHER, schema_form

Fields = dict[str, Any]

_SCHEMA = "response_format/json_schema/schema"


def _schema(schema: object) -> Fields:
    return {"response_format": schema_form(schema)}


def _tower(word: str, branches: int, height: int) -> Fields:
    schema: Fields = {"type": "string"}
    for _ in range(height):
        properties = [{"type": "object", "properties": {f"p{i}": schema}} for i in range(branches)]
        schema = {word: properties}
    return schema


def _tool(schema: object) -> Fields:
    function = {**WEATHER["function"], "parameters": schema}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


def _object(**properties: object) -> Fields:
    return {"type": "object", "properties": properties}


# name -> (fields of the request, how error.param begins)
BAD: dict[str, tuple[Fields, str]] = {
    "a type that is none": (
        _schema(_object(a={"type": "strin"})),
        f"{_SCHEMA}/properties/a",
    ),
    "a schema that is a number": ({"response_format": schema_form(3)}, _SCHEMA),
    "a regex that looks ahead": ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs"),
    "a regex that is none": ({"structured_outputs": {"regex": "(a"}}, "structured_outputs/regex"),
    "a regex with NUL": ({"structured_outputs": {"regex": "a\0"}}, "structured_outputs/regex"),
    "a grammar that is none": (
        {"structured_outputs": {"grammar": "start: nowhere"}},
        "structured_outputs/grammar",
    ),
    "an empty grammar": ({"structured_outputs": {"grammar": " "}}, "structured_outputs/grammar"),
    "no choice": ({"structured_outputs": {"choice": []}}, "structured_outputs/choice"),
    "two at once": ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    "a tower of anyOf, 600 kB": (_schema(_tower("anyOf", 2, 12)), _SCHEMA),
    "an array of 100,000 items": (
        _schema({"type": "array", "items": {"type": "integer"}, "minItems": 100_000}),
        _SCHEMA,
    ),
    "an enum of 20,000": (_schema({"enum": [f"word{i}" for i in range(20_000)]}), _SCHEMA),
    "repeats of repeats": (
        {"structured_outputs": {"regex": "(((a{1,50}){1,50}){1,50}){1,50}"}},
        "structured_outputs/regex",
    ),
    "a schema of 600 kB": (
        _schema(_object(**{f"property_{i}": {"type": "string"} for i in range(18_000)})),
        _SCHEMA,
    ),
    "90 levels": (_schema(_tower("allOf", 1, 90)), _SCHEMA),
    "a reference to nowhere": (_schema({"$ref": "#/$defs/none"}), _SCHEMA),
    "a bad schema of a tool": (_tool(_object(a={"type": 5})), "tools/0/function/parameters"),
    "a call of no tool": (
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "none"}}},
        "tool_choice",
    ),
}
