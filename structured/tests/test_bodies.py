from __future__ import annotations

from typing import Any

import pytest

from inferway_structured.errors import InvalidRequestError, SpecError
from inferway_structured.requests import read_specs
from inferway_structured.spec import Kind, Options, OutputConstraint, Spec

FORM = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object", "title": "a"}},
    }
}


def read(**fields: Any) -> list[OutputConstraint]:
    return read_specs(fields)


def test_a_chat_may_be_given_as_it_would_be_sent() -> None:
    (asked,) = read(model="m", messages=[{"role": "user", "content": "hi"}], **FORM)

    assert asked == OutputConstraint(
        Spec(Kind.JSON, '{"type":"object"}'), "response_format/json_schema/schema"
    )


def test_a_response_too() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}

    (asked,) = read(input="hi", text={"format": form})

    assert asked == OutputConstraint(
        Spec(Kind.JSON, '{"type":"object"}'), "text/format/schema", strict=True
    )


def test_a_path_says_what_a_request_is_for() -> None:
    (asked,) = read(path="/v1/completions", prompt="hi", guided_regex="a")

    assert asked.spec.kind is Kind.REGEX


def test_a_spec_may_be_spelled_out() -> None:
    (asked,) = read(kind="json", text='{ "type": "object" }', options={"any_whitespace": False})

    assert asked.spec == Spec(Kind.JSON, '{"type":"object"}', Options(any_whitespace=False))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": "m"},
        {"kind": "poem"},
        {"kind": "regex", "text": 1},
        {"kind": 1},
        {"kind": "regex", "options": {"any_whitespace": 1}},
    ],
)
def test_what_asks_for_nothing_or_is_unreadable_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        read(**fields)


def test_a_shape_that_is_none_is_refused_with_its_place() -> None:
    with pytest.raises(SpecError) as e:
        read(kind="choice", text="[]")

    assert e.value.param == "text"
