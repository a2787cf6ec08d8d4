from __future__ import annotations

import json
from typing import Any

import pytest

from inferway_structured.backends.schemas.nodes import parsed
from inferway_structured.backends.schemas.plain import as_it_came
from inferway_structured.backends.schemas.strings import FORMAT_PATTERNS

WIDE = "^[^\\\\]+$"  # llguidance lets a backslash through
RIGHT = "^[^[\\x{1}]\\\\]+$"


def said(schema: Any) -> Any:
    text = as_it_came(json.dumps(schema))
    return None if text is None else json.loads(text)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"properties": {"a": {"pattern": "^a+$"}, "b": {"$ref": "#/properties/a"}}},
        {"enum": [{"pattern": WIDE}]},
        {"properties": {"pattern": {"const": WIDE}}},
    ],
)
def test_what_is_read_as_it_is_meant_is_tried_as_it_came(schema: Any) -> None:
    text = json.dumps(schema, indent=1)

    assert as_it_came(text) == text


@pytest.mark.parametrize(
    ("schema", "tried"),
    [
        ({"pattern": WIDE}, {"pattern": RIGHT}),
        (
            {"properties": {"pattern": {"items": [{"pattern": WIDE}]}}},
            {"properties": {"pattern": {"items": [{"pattern": RIGHT}]}}},
        ),
        (
            {"patternProperties": {WIDE: {"pattern": WIDE}}, "b": 1},
            {"patternProperties": {RIGHT: {"pattern": RIGHT}}, "b": 1},
        ),
        ({"items": {"format": "unheard-of"}}, {"items": {}}),
        ({"format": "unheard-of", "pattern": "a"}, {"pattern": "a"}),
        ({"format": "date"}, {"pattern": FORMAT_PATTERNS["date"]}),
        ({"format": "email", "pattern": WIDE}, {"format": "email", "pattern": RIGHT}),
        (
            {"properties": {"format": {"format": "date"}}},
            {"properties": {"format": {"pattern": FORMAT_PATTERNS["date"]}}},
        ),
    ],
)
def test_only_patterns_and_formats_are_said_otherwise_and_the_order_stays(
    schema: Any, tried: Any
) -> None:
    assert said(schema) == tried
    assert set(said(schema)) <= {*schema, "pattern"}


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"pattern": WIDE}},
        {"items": {"format": "regex"}},
        {"format": "date", "pattern": "^2"},
        {"x-guidance": {}},
    ],
)
def test_what_would_be_refused_or_misread_is_not_tried(schema: Any) -> None:
    assert said(schema) is None


@pytest.mark.parametrize("word", ["pattern", "\\u0070attern"])
def test_what_is_parsed_once_for_all_stays_as_it_was_said(word: str) -> None:
    text = json.dumps({"type": "string", "pattern": WIDE}).replace('"pattern"', f'"{word}"')

    assert as_it_came(text) != text
    assert parsed(text) == {"type": "string", "pattern": WIDE}
