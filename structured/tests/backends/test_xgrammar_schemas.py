"""What xgrammar is given of a schema, and, where an engine's Python is, that it keeps all of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structured.tests.backends.schemas.drawn import documents, values, written_otherwise

from inferway_structured.backends.xgrammar_schemas import said_for_xgrammar

Takes = Callable[[Any, Sequence[str]], list[bool]]

OBJECT = {"type": "object", "additionalProperties": {}}
ARRAY = {"type": "array", "items": {}}
OTHERS = [{"type": "boolean"}, {"type": "null"}]


@pytest.mark.parametrize(
    ("schema", "said", "named"),
    [
        (True, {}, []),
        ({"title": "any"}, {}, []),
        (False, False, []),
        ({"type": "string", "maxLength": 3}, {"type": "string", "maxLength": 3}, []),
        ({"type": "object"}, OBJECT, []),
        (
            {"minimum": 2},
            {
                "anyOf": [
                    ARRAY,
                    *OTHERS,
                    OBJECT,
                    {"type": "string"},
                    {"type": "number", "minimum": 2},
                ]
            },
            [],
        ),
        ({"type": "integer", "minimum": 0.5}, {"type": "integer", "minimum": 1}, []),
        ({"type": "number", "minimum": 1, "exclusiveMaximum": 1}, False, []),
        ({"type": ["integer", "null"], "enum": [1, "a", None]}, {"enum": [1, None]}, []),
        ({"enum": [1, 5], "minimum": 3}, {"enum": [1, 5]}, ["minimum"]),
        ({"type": "string", "pattern": "^[a-z]+\\d$"}, None, []),
        ({"type": "string", "pattern": "b"}, {"type": "string"}, ["pattern"]),
        ({"type": "string", "pattern": "^(?=a)b$"}, {"type": "string"}, ["pattern"]),
        (
            {"type": "array", "prefixItems": [{"type": "null"}], "items": False},
            ARRAY,
            ["prefixItems", "items"],
        ),
        ({"type": "object", "required": ["z"]}, OBJECT, ["required"]),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, False, []),
        (
            {"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"type": "integer"}}},
            {"$ref": "#/$defs/d0", "$defs": {"d0": {"type": "integer"}}},
            ["maximum"],
        ),
        ({"allOf": [{"type": "integer"}], "oneOf": [{}]}, {}, ["allOf", "oneOf"]),
    ],
)
def test_what_xgrammar_would_misread_is_said_otherwise_or_named(
    schema: Any, said: Any, named: list[str]
) -> None:
    found, left_out = said_for_xgrammar(schema, "/at")

    assert found == (schema if said is None else said)
    assert [(one.place, one.keyword) for one in left_out] == [("/at", word) for word in named]


def test_lengths_of_texts_without_quotes_are_named() -> None:
    schema = {"properties": {"a": {"type": "string", "maxLength": 3}}}

    said, left_out = said_for_xgrammar(schema, "", is_arguments=True)

    assert said == {**OBJECT, "properties": {"a": {"type": "string"}}}
    assert [(one.place, one.keyword) for one in left_out] == [("/properties/a", "maxLength")]


@pytest.fixture(scope="module")
def takes() -> Iterator[Takes]:
    python = Path(os.environ["INFERWAY_VLLM_VENV"]) / "bin" / "python"
    program = [python, Path(__file__).with_name("xgrammar_takes.py")]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def ask(schema: Any, texts: Sequence[str]) -> list[bool]:
            form = {"type": "json_schema", "json_schema": schema}
            tag = {"type": "structural_tag", "format": form}
            print(json.dumps([tag, texts]), file=stdin, flush=True)
            found = json.loads(stdout.readline())
            assert isinstance(found, list), found
            return found

        yield ask
        stdin.close()


@pytest.mark.fleet
@settings(
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(documents, st.lists(values, min_size=1, max_size=6))
def test_xgrammar_lets_through_what_is_valid_and_nothing_else_that_is_not_named(
    takes: Takes, schema: Any, instances: list[Any]
) -> None:
    asked = jsonschema_rs.Draft202012Validator(schema)
    said, left_out = said_for_xgrammar(schema, "")
    if said is False:
        assert not any(map(asked.is_valid, instances))
        return

    for instance in instances:
        texts = [
            json.dumps(one, separators=blanks)
            for one in written_otherwise(instance)
            for blanks in ((",", ":"), (", ", ": "))
        ]
        taken = any(takes(said, texts))
        if asked.is_valid(instance):
            assert taken, f"{instance!r} lost"
        elif not left_out:
            assert not taken, f"{instance!r} let through"
