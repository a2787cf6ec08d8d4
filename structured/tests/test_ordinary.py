"""What is told of a schema in a quick way is what the whole way tells."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structured.tests.hostile_draws import hostile_specs
from structured.tests.lifelike import PATTERNS, lifelike_schemas

from inferway_structured.backends.schemas.weight import _MEETING, _at_most, _Weigher
from inferway_structured.errors import SpecError
from inferway_structured.spec import Kind, canonical
from inferway_structured.validate.check import DEFAULT
from inferway_structured.validate.json_schema_drafts import (
    is_ordinary,
    is_ordinary_tree,
    validator_of,
)
from inferway_structured.validate.limits import SpecLimits
from inferway_structured.validate.regexes import measured
from inferway_structured.validate.schema_walk import graph
from inferway_structured.validate.schemas import (
    _LINKS,
    _check_counts,
    _check_graph,
    _check_patterns,
    _has_small_counts,
)

DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def _is_simple(text: str, limits: SpecLimits) -> bool:
    return _has_small_counts(text, limits) and not _LINKS.search(text)


def _is_ordinary(schema: Any) -> bool:
    text = json.dumps(schema)
    with graph(schema) as found:
        if found.dangling:
            return False
        return is_ordinary(found, _check_patterns(found, DEFAULT), text)


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


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_what_a_text_shows_is_what_the_graph_tells(seed: int) -> None:
    simple = 0
    drawn = [json.loads(spec.text) for _, spec in hostile_specs(seed, 90) if spec.kind is Kind.JSON]
    for schema in [*drawn, *lifelike_schemas(seed, 200)]:
        if not isinstance(schema, dict):
            continue
        text = json.dumps(schema, separators=(",", ":"))
        if not _is_simple(text, DEFAULT):
            continue
        simple += 1
        with graph(schema) as found:
            _check_counts(found, DEFAULT)  # do not raise
            odd = _check_graph(found, DEFAULT, text)
            assert is_ordinary_tree(schema, text) <= is_ordinary(found, odd, text)
    assert simple >= 5


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/a"},
        {"properties": {"a": {"pattern": "("}}},
        {"patternProperties": {"(": {}}},
        {"properties": {"a": {"$id": "http://x y"}}},
        {"maxItems": 10_001},
        {"maxItems": 1e9},
        {"not": {"allOf": [{}]}},
        {"title": "\ud800"},
        {"enum": list(range(3_000))},
    ],
)
def test_what_a_text_does_not_show_is_told_by_the_graph(schema: Any) -> None:
    text = json.dumps(schema, separators=(",", ":"))
    assert not _is_simple(text, DEFAULT) or not is_ordinary_tree(schema, text)


@pytest.mark.parametrize("schema", [{"type": "strin"}, {"$schema": "http://x"}, {"required": "a"}])
def test_a_simple_text_still_has_to_keep_the_rules(schema: Any) -> None:
    text = canonical(schema, "")
    assert _is_simple(text, DEFAULT)
    assert not is_ordinary_tree(schema, text)


@pytest.mark.parametrize("seed", [3, 8])
def test_a_schema_weighs_no_more_than_its_text_shows(seed: int) -> None:
    shown = 0
    drawn = [spec.text for _, spec in hostile_specs(seed, 90) if spec.kind is Kind.JSON]
    for text in [*drawn, *map(json.dumps, lifelike_schemas(seed, 200))]:
        if not _MEETING.search(text):
            shown += 1
            assert _Weigher(json.loads(text), has_places=True).total() <= _at_most(text)
    assert shown >= 5


# of a syntax that all dialects share, and what looks like it
@pytest.mark.parametrize(
    "pattern",
    [
        *PATTERNS,
        *("a*?", "a{2,3}?", "[]", "[^]]", "a**", "*", "a{3,2}", "a{", "}", "]", "(", ")", "a|*"),
        *("[a", "[z-a]", r"[a-\d]", r"[\d-z]", "[[]", "[a&&b]", "[a--b]", "[~~]", r"\h", r"\<"),
        *("\\", r"\-", r"\/", "(?:a)", "(?i)a", "(?P<n>a)", "(?=a)", r"\1", r"\x4", "^*", "$+"),
    ],
)
def test_each_pattern_of_ordinary_syntax_is_one(pattern: str) -> None:
    if measured(pattern).is_ordinary:
        assert validator_of({"pattern": pattern}) is not None
        assert validator_of({"patternProperties": {pattern: {}}}) is not None


def test_most_patterns_are_of_ordinary_syntax() -> None:
    assert [one for one in PATTERNS if not measured(one).is_ordinary] == [r"^(?!.*--)[a-z-]+$"]


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
