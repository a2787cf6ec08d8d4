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


def test_properties_keep_their_order() -> None:
    assert json_spec('{"b": 1, "a": 2}', "x").text == '{"b":1,"a":2}'
    assert json_spec('{"b": 1, "a": 2}', "x").key != json_spec('{"a": 2, "b": 1}', "x").key


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
