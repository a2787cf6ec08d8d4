from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_structured.errors import SpecError
from inferway_structured.spec import (
    MAX_TEXT_BYTES,
    Kind,
    Options,
    Spec,
    canonical,
    from_vllm,
    json_spec,
    parsed,
    size_at_least,
    structural_tag_spec,
)

FINITE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def params(**fields: Any) -> SimpleNamespace:
    """As vLLM's StructuredOutputsParams: every field there, most of them None."""
    names = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
    flags = {"disable_any_whitespace": False, "disable_additional_properties": False}
    return SimpleNamespace(
        **{**dict.fromkeys(names), **flags, "whitespace_pattern": None, **fields}
    )


def test_vllms_parameters_and_a_request_body_come_to_the_same_spec() -> None:
    schema = {"type": "object", "properties": {"é": {}, "a": {}}}

    assert from_vllm(params(json=schema)) == json_spec(schema, "response_format")
    assert from_vllm(params(json=json.dumps(schema))).key == json_spec(schema, "x").key


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"regex": "a"}, Spec(Kind.REGEX, "a")),
        ({"choice": ["a", "é"]}, Spec(Kind.CHOICE, '["a","é"]')),
        ({"grammar": "start: A"}, Spec(Kind.GRAMMAR, "start: A")),
        ({"json_object": True}, Spec(Kind.JSON_OBJECT, "")),
        (
            {"json": "{}", "disable_any_whitespace": True},
            Spec(Kind.JSON, "{}", Options(any_whitespace=False)),
        ),
    ],
)
def test_vllms_parameters(given: dict[str, Any], expected: Spec) -> None:
    assert from_vllm(params(**given)) == expected


def test_vllms_parameters_may_lack_fields_that_their_version_does_not_have() -> None:
    assert from_vllm(SimpleNamespace(json="{}")) == Spec(Kind.JSON, "{}")


def test_keywords_come_in_one_order_and_names_and_values_in_their_own() -> None:
    schema = {
        "required": ["b"],
        "properties": {"title": {"type": "string", "const": "", "title": "T"}, "a": {}},
        "allOf": [{"type": "object", "description": ""}],
        "$defs": {"z": {"type": "null", "const": None}, "y": True},
        "enum": [{"title": 1, "a": 2}],
        "x-unknown": {"title": 1, "a": 2},
    }

    text = json_spec(schema, "x").text

    assert text == (
        '{"$defs":{"z":{"const":null,"type":"null"},"y":true},"enum":[{"title":1,"a":2}],'
        '"required":["b"],"x-unknown":{"title":1,"a":2},'
        '"properties":{"title":{"const":"","type":"string"},"a":{}},"allOf":[{"type":"object"}]}'
    )
    assert text == json_spec(json.loads(text), "x").text


def test_names_that_no_reference_can_mean_are_left_out() -> None:
    named = {"$id": "http://x/y", "properties": {"a": {"id": "#a", "$anchor": "b"}}}

    assert json_spec(named, "x").text == '{"properties":{"a":{}}}'
    assert json_spec({**named, "$ref": "#b"}, "x").text.count("#a") == 1


def test_a_description_that_a_reference_leads_to_stays() -> None:
    schema = {"default": {"type": "null"}, "allOf": [{"$ref": "#/default"}]}

    assert json.loads(json_spec(schema, "x").text) == schema


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        ({"type": "object", "required": []}, {"required": [], "type": "object"}, True),
        ({"properties": {"a": {}, "b": {}}}, {"properties": {"b": {}, "a": {}}}, False),
        ({"allOf": [{}], "properties": {}}, {"properties": {}, "allOf": [{}]}, False),
        ({"enum": [{"a": 1, "b": 2}]}, {"enum": [{"b": 2, "a": 1}]}, False),
        ({"type": "null", "description": "one"}, {"description": "two", "type": "null"}, True),
        ({"title": "a"}, {"x-title": "a"}, False),
    ],
)
def test_what_is_written_in_another_order_is_the_same_unless_answers_differ(
    one: object, other: object, are_equal: bool
) -> None:
    assert (json_spec(one, "x").key == json_spec(other, "x").key) is are_equal


def test_the_schemas_of_a_tag_have_their_keywords_in_one_order_and_the_request_keeps_its_own() -> (
    None
):
    def tag(schema: object) -> dict[str, object]:
        return {"format": {"type": "json_schema", "json_schema": schema}}

    given = tag({"type": "object", "required": []})

    made = structural_tag_spec(given, "x")

    assert made.key == structural_tag_spec(tag({"required": [], "type": "object"}), "x").key
    assert list(given["format"]["json_schema"]) == ["type", "required"]  # type: ignore[index]


def test_of_a_name_that_comes_twice_the_last_value_counts() -> None:
    assert json_spec('{"type":"string","type":"integer"}', "x").text == '{"type":"integer"}'


def test_large_numbers_stay_as_they_are() -> None:
    text = '{"maximum":123456789012345678901234567890}'

    assert json_spec(text, "x").text == text


def test_a_key_depends_on_all_of_a_spec() -> None:
    specs = [
        Spec(Kind.JSON, "{}"),
        Spec(Kind.REGEX, "{}"),
        Spec(Kind.JSON, '{"a":1}'),
        Spec(Kind.JSON, "{}", Options(any_whitespace=False)),
        Spec(Kind.JSON, "{}", Options(additional_properties=False)),
        Spec(Kind.JSON, "{}", Options(whitespace_pattern="")),
    ]

    assert len({spec.key for spec in specs}) == len(specs)


def test_a_key_is_the_same_in_every_process() -> None:
    assert Spec(Kind.JSON, '{"a":"é"}').key == "332f9b19800a7a457b60ec4584ee9842"


@given(FINITE)
def test_canonical_text_says_the_same_and_is_its_own_canonical_text(value: Any) -> None:
    text = canonical(value, "x")

    assert json.loads(text) == value
    assert canonical(parsed(text, "x"), "x") == text


@given(FINITE)
def test_a_size_that_is_counted_is_never_more_than_the_text_has(value: Any) -> None:
    assert size_at_least(value, MAX_TEXT_BYTES) <= len(canonical(value, "x").encode())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {"a": ["\udfff"]}])
def test_what_json_has_no_words_for_is_refused(value: Any) -> None:
    with pytest.raises(SpecError, match=r"^here: holds"):
        canonical(value, "here")


def test_a_text_too_long_is_refused_before_it_is_written() -> None:
    endless = ["x" * 1000] * (MAX_TEXT_BYTES // 1000 + 1)

    with pytest.raises(SpecError, match="longer than 262144 bytes"):
        canonical([endless] * 10_000, "here")


def test_bytes_count_not_characters() -> None:
    with pytest.raises(SpecError, match="longer than"):
        canonical("é" * (MAX_TEXT_BYTES // 2), "here")


@pytest.mark.parametrize("wrong", [["x"], {"a": 1}, None, 1])
def test_a_type_in_a_structural_tag_is_a_string(wrong: object) -> None:
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [{"type": wrong}]}}

    with pytest.raises(SpecError, match=r"elements/0/type: expected a string"):
        structural_tag_spec(tag, "response_format")
