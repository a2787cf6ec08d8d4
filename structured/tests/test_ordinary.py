"""What is told of a schema in a quick way is what the whole way tells."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structured.tests.hostile_draws import hostile_specs
from structured.tests.lifelike import lifelike_schemas

from inferway_structured.backends.schemas.weight import _Weigher
from inferway_structured.errors import SpecError
from inferway_structured.spec import Kind
from inferway_structured.validate.json_schema_drafts import is_ordinary, validator_of
from inferway_structured.validate.schema_walk import graph

DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def _is_ordinary(schema: Any) -> bool:
    with graph(schema) as found:
        return not found.dangling and is_ordinary(found.nodes, json.dumps(schema))


def test_each_ordinary_schema_is_valid() -> None:
    schemas = lifelike_schemas(7, 120)

    ordinary = [schema for schema in schemas if _is_ordinary(schema)]

    assert ordinary
    for schema in ordinary:
        assert validator_of(schema) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"properties": {"a": {"type": 5}}},
        {"required": ["a", "a"]},
        {"pattern": "("},
        {"patternProperties": {"(": {}}},
        {"$schema": "http://nobody.knows/it"},
        {"properties": {"a": {"$id": "http://x y"}}},
        {"$schema": DRAFT_4, "$ref": "#/$defs/a", "$defs": {"a": {"type": 5}}},
        {"$ref": "#/x/a", "x": {"a": {"type": 5}}},
        {"title": "\ud800"},
    ],
)
def test_what_the_rules_of_the_draft_do_not_tell_is_not_ordinary(schema: Any) -> None:
    assert not _is_ordinary(schema)


@pytest.mark.parametrize("seed", [3, 8])
def test_the_weight_of_what_meets_nothing_is_that_of_all_figures(seed: int) -> None:
    drawn = [json.loads(spec.text) for _, spec in hostile_specs(seed, 90) if spec.kind is Kind.JSON]
    for schema in [*drawn, *lifelike_schemas(seed, 60)]:
        for has_places in (False, True):
            try:
                whole = _Weigher(schema, has_places)._of(schema, False).size
            except (SpecError, TypeError, ValueError, RecursionError):
                continue
            assert _Weigher(schema, has_places)._size(schema) == pytest.approx(whole)
