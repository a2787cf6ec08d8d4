from __future__ import annotations

import json
from typing import Any

import pytest

from inferway_bench.structured.benchmark import in_schema_order

AB: dict[str, Any] = {"properties": {"a": {}, "b": {}}}
CASES: dict[str, tuple[Any, Any, Any]] = {
    "as the schema lists them": (AB, {"b": 1, "a": 2}, {"a": 2, "b": 1}),
    "others stay behind, as they were": (
        AB,
        {"z": 0, "b": 1, "y": 0, "a": 2},
        {"a": 2, "b": 1, "z": 0, "y": 0},
    ),
    "in arrays and under properties": (
        {"items": {"properties": {"x": AB}}},
        [{"x": {"b": 1, "a": 2}}],
        [{"x": {"a": 2, "b": 1}}],
    ),
    "through references": (
        {"$defs": {"t": AB}, "additionalProperties": {"$ref": "#/$defs/t"}},
        {"q": {"b": 1, "a": 2}},
        {"q": {"a": 2, "b": 1}},
    ),
    "of all that must hold, in the order written": (
        {"allOf": [{"properties": {"c": {}}}], **AB},
        {"b": 1, "a": 2, "c": 3},
        {"c": 3, "a": 2, "b": 1},
    ),
    "of alternatives, the one that takes it": (
        {
            "anyOf": [
                {"properties": {"k": {"const": 1}, "a": {}, "b": {}}},
                {"properties": {"b": {}, "a": {}, "k": {"const": 2}}},
            ]
        },
        {"k": 2, "a": 0, "b": 0},
        {"b": 0, "a": 0, "k": 2},
    ),
    "required ones that nobody lists come next": (
        {**AB, "required": ["r"]},
        {"z": 1, "r": 1, "b": 1},
        {"b": 1, "r": 1, "z": 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_properties_come_in_the_order_of_the_schema(name: str) -> None:
    schema, value, expected = CASES[name]

    found = in_schema_order(schema, value)

    assert json.dumps(found) == json.dumps(expected)
