"""bytes -> typed requests, and errors that name the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import InvalidRequestError
from inferway.openai_api.requests import ParsedRequest, parse_chat, parse_completion


def encode(**fields: object) -> bytes:
    return msgspec.json.encode(fields)


USER = {"role": "user", "content": "hi"}


def test_unknown_fields_are_kept() -> None:
    parsed = parse_chat(encode(model="m", messages=[USER], brand_new={"x": 1}))

    assert parsed.fields["brand_new"] == {"x": 1}
    assert parsed.body.model == "m"


def test_a_null_is_an_absent_field() -> None:
    parsed = parse_chat(encode(model="m", messages=[USER], tools=None, stream=None))

    assert parsed.body.tools is None


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b"", "body: not valid JSON: Input data was truncated", None),
        (b'{"model": "m"', "body: not valid JSON: Input data was truncated", None),
        (b"[1]", "body: expected `object`, got `array`", None),
        (encode(messages=[USER]), "model: required field is missing", "model"),
        (encode(model="m"), "messages: required field is missing", "messages"),
        (encode(model=3, messages=[USER]), "model: expected `str`, got `int`", "model"),
        (encode(model="m", messages="x"), "messages: expected `array`, got `str`", "messages"),
        (encode(model="m", messages=[]), "messages: must not be empty", "messages"),
        (
            encode(model="m", messages=["x"]),
            "messages[0]: expected `object`, got `str`",
            "messages[0]",
        ),
        (
            encode(model="m", messages=[USER, {"content": "x"}]),
            "messages[1].role: expected `str`, got nothing",
            "messages[1].role",
        ),
        (
            encode(model="m", messages=[{"role": "user", "content": 5}]),
            "messages[0].content: expected text or a list of parts, got `int`",
            "messages[0].content",
        ),
        (
            encode(model="m", messages=[{"role": "user", "content": [7]}]),
            "messages[0].content[0]: expected an object, got `int`",
            "messages[0].content[0]",
        ),
        (
            encode(model="m", messages=[USER], tools={"a": 1}),
            "tools: expected `array | null`, got `object`",
            "tools",
        ),
    ],
)
def test_a_bad_chat_names_its_field(body: bytes, message: str, param: str | None) -> None:
    with pytest.raises(InvalidRequestError) as e:
        parse_chat(body)

    assert str(e.value) == message
    assert e.value.param == param


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_a_completion_carries_text_or_ids_one_or_many(prompt: object, prompts: object) -> None:
    assert parse_completion(encode(model="m", prompt=prompt)).body.prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt: must not be empty"),
        (["a", 1], "prompt: must not mix text and token ids"),
        ([True], "prompt[0]: expected `int | str | array`, got `bool`"),
        (7, "prompt: expected `str | array | null`, got `int`"),
    ],
)
def test_a_bad_prompt_is_named(prompt: object, message: str) -> None:
    with pytest.raises(InvalidRequestError) as e:
        parse_completion(encode(model="m", prompt=prompt))

    assert str(e.value) == message


@pytest.mark.parametrize("fields", [{}, {"prompt": None}])
def test_a_prompt_is_missing_only_beside_embeddings(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="prompt: required field is missing"):
        parse_completion(encode(model="m", **fields))

    assert parse_completion(encode(model="m", prompt_embeds="x", **fields)).body.prompts == []


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_named_error(raw: bytes) -> None:
    for parse in (parse_chat, parse_completion):
        with pytest.raises(InvalidRequestError):
            parse(raw)


def outcome(parse: Callable[[bytes], ParsedRequest[Any]], fields: dict[str, object]) -> str:
    try:
        parsed = parse(msgspec.json.encode(fields))
    except InvalidRequestError as e:
        return "named error" if e.param else "error without a name"
    return "request" if parsed.fields == fields else "fields lost"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from(["model", "messages", "prompt", "tools", "stream", "chat_template", "x"])


@given(st.dictionaries(names, json_values))
def test_any_json_object_is_a_request_or_a_named_error(fields: dict[str, object]) -> None:
    for parse in (parse_chat, parse_completion):
        assert outcome(parse, fields) in ("request", "named error")
