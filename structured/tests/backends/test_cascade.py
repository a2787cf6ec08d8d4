from __future__ import annotations

import json
from typing import Any

import pytest
from structured.tests.compiling import smollm2

from inferway_structured.backends.cascade import Cascade, verdict
from inferway_structured.errors import SpecError
from inferway_structured.grammar import Unenforced
from inferway_structured.spec import Kind, Options, Spec

CASCADE = Cascade(smollm2())
UNIQUE = {"type": "object", "properties": {"a/b": {"type": "array", "uniqueItems": True}}}


def json_spec(schema: Any, options: Options | None = None) -> Spec:
    return Spec(Kind.JSON, json.dumps(schema), options or Options())


def takes(spec: Spec, text: str) -> bool:
    tokens = [*CASCADE.vocabulary.ll_tokenizer.tokenize_str(text), 2]
    return CASCADE.compile(spec).start().validate(tokens) == len(tokens)


def test_what_nobody_keeps_is_named_with_its_place() -> None:
    named = [Unenforced("/properties/a~1b", "uniqueItems")]

    assert list(verdict(json_spec(UNIQUE)).unenforced) == named
    assert list(CASCADE.compile(json_spec(UNIQUE)).unenforced) == named


def test_a_schema_gives_the_library_no_orders() -> None:
    spec = json_spec({"x-guidance": {"lenient": True}, "not": {"type": "string"}})

    assert takes(spec, "1")
    assert not takes(spec, '"a"')


def test_a_dialect_nobody_knows_is_read_all_the_same() -> None:
    spec = json_spec({"$schema": "https://example.com/own#", "$id": "x", "type": "integer"})

    assert list(CASCADE.compile(spec).unenforced) == []
    assert not takes(spec, '"a"')


def test_objects_that_do_not_say_so_are_closed_where_the_engine_says_so() -> None:
    schema = {"type": "object", "properties": {"a": {}}}

    assert takes(json_spec(schema), '{"b": 1}')
    assert not takes(json_spec(schema, Options(additional_properties=False)), '{"b": 1}')


def test_blanks_go_where_the_request_says_so() -> None:
    compact = json_spec({"type": "array"}, Options(any_whitespace=False))

    assert takes(compact, "[1,2]")
    assert not takes(compact, "[1, 2]")


@pytest.mark.parametrize("schema", [False, {"not": {}}, {"allOf": [{"type": "null"}, False]}])
def test_a_schema_that_nothing_keeps_is_refused(schema: Any) -> None:
    with pytest.raises(SpecError, match="no answer can keep"):
        CASCADE.compile(json_spec(schema))


def test_anything_is_taken_where_nothing_is_asked() -> None:
    assert takes(json_spec(True), '{"a": [1]}')


TAG = {
    "triggers": ["<f"],
    "structures": [{"begin": "<f>", "schema": {"not": {"type": "null"}}, "end": "</f>"}],
}


def test_schemas_in_structural_tags_are_kept_as_if_they_stood_alone() -> None:
    spec = Spec(Kind.STRUCTURAL_TAG, json.dumps(TAG))

    assert takes(spec, "so: <f>1</f>")
    assert not takes(spec, "so: <f>null</f>")


def test_a_keyword_in_a_structural_tag_is_named_with_its_place_in_the_tag() -> None:
    tag = {**TAG, "structures": [{"begin": "<f>", "schema": UNIQUE, "end": "</f>"}]}

    found = verdict(Spec(Kind.STRUCTURAL_TAG, json.dumps(tag)))

    place = "/structures/0/schema/properties/a~1b"
    assert list(found.unenforced) == [Unenforced(place, "uniqueItems")]


def test_a_circle_that_the_library_cannot_close_is_left_open_and_named() -> None:
    tree = {"$ref": "#/$defs/t", "properties": {"a": {"maxProperties": 3}}}
    schema = {
        "$defs": {"t": {"properties": {"a": tree, "b": {"type": "null"}}}},
        "$ref": "#/$defs/t",
    }

    found = CASCADE.compile(json_spec(schema))

    assert {one.keyword for one in found.unenforced} <= {"$ref", "maxProperties"}
    assert not takes(json_spec(schema), '{"b": 1}')


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "not JSON"), ('{"items":' * 9_000 + '{"not":{}}' + "}" * 9_000, "nested too deeply")],
)
def test_what_cannot_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        CASCADE.compile(Spec(Kind.JSON, text))
