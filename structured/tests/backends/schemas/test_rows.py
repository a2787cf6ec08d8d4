"""Objects of many optional properties, stepped with a real library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structured.tests.compiling import smollm2

from inferway_structured.backends.cascade import Cascade
from inferway_structured.backends.schemas.rows import MAX_AT_ONCE, MAX_OPTIONAL, with_short_rows
from inferway_structured.errors import SpecError
from inferway_structured.spec import Kind, Spec, json_spec

VOCABULARY = smollm2()
EOS = VOCABULARY.eos_token_ids[0]
CASCADE = Cascade(VOCABULARY)


def wide(num: int, num_schemas: int = 1, **more: object) -> dict[str, Any]:
    properties = {
        f"p{at}": {"type": "integer", "title": f"P {at}", "minimum": at % num_schemas}
        for at in range(num)
    }
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def takes(schema: object, value: object) -> bool:
    """Token by token, to the end."""
    grammar = CASCADE.compile(json_spec(schema, "")).start()
    tokens = [*VOCABULARY.ll_tokenizer.tokenize_str(json.dumps(value)), EOS]
    return grammar.accept(tokens)


@pytest.mark.parametrize(("num", "num_schemas"), [(501, 1), (2_000, 1), (2_000, 40)])
def test_an_answer_with_any_of_the_properties_comes_to_its_end(num: int, num_schemas: int) -> None:
    schema = wide(num, num_schemas, required=["p7", f"p{num - 1}"])
    whole = {"p7": 99, f"p{num - 1}": 99, **{f"p{at}": 99 for at in range(num - 1)}}

    assert takes(schema, whole)
    assert takes(schema, {"p7": 99, f"p{num - 1}": 99})


def test_what_the_schema_forbids_stays_forbidden() -> None:
    schema = wide(1_000, 2, required=["p7"])

    assert not takes(schema, {"p1": 1})
    assert not takes(schema, {"p7": 1, "p1": "1"})
    assert not takes(schema, {"p7": 1, "p1": 0})
    assert not takes(schema, {"p7": 1, "p1000": 1})
    assert takes({**schema, "additionalProperties": {"type": "null"}}, {"p7": 1, "more": None})
    assert not takes({**schema, "additionalProperties": {"type": "null"}}, {"p7": 1, "p9": None})


def test_what_cannot_be_stepped_through_is_refused_with_the_limit_and_the_place() -> None:
    schema = {"type": "object", "properties": {"in": wide(700, 700)}, "required": ["in"]}

    with pytest.raises(SpecError, match=f"{MAX_AT_ONCE} at most") as refused:
        CASCADE.compile(Spec(Kind.JSON, json.dumps(schema)))

    assert refused.value.place == "/properties/in"


def test_as_many_as_are_let_through_as_they_are_come_to_their_end() -> None:
    num = MAX_AT_ONCE

    assert takes(wide(num, num), {f"p{at}": num for at in range(0, num, 50)})


def test_alternatives_count_together() -> None:
    ways = [wide(60, required=[f"kind{at}"]) for at in range(20)]
    for at, way in enumerate(ways):
        way["properties"][f"kind{at}"] = {"const": at}

    assert takes({"anyOf": ways}, {"kind7": 7, "p3": 3})
    assert not takes({"anyOf": ways}, {"kind7": 8})


@pytest.mark.parametrize(
    "schema",
    [
        wide(MAX_OPTIONAL),
        wide(600, required=[f"p{at}" for at in range(0, 600, 2)]),
        {"enum": [wide(600)]},
    ],
)
def test_other_schemas_stay_as_they_are(schema: object) -> None:
    text = json.dumps(schema)

    assert with_short_rows(text) is text
