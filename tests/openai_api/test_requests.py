"""bytes -> typed requests, and errors that name the field."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import InvalidRequestError
from inferway.openai_api.generate import GenerateRequest
from inferway.openai_api.kinds import PARSERS, Parse, parser_by_suffix
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import (
    Body,
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    MessagesRequest,
    ResponsesRequest,
    parse_chat,
    parse_completion,
    reads_cache,
)


def encode(**fields: object) -> bytes:
    return msgspec.json.encode(fields)


USER = {"role": "user", "content": "hi"}


def request(body: Body, raw: bytes) -> LLMRequest:
    return LLMRequest(request_id="r", target_model="m", body=body, raw=raw)


@pytest.mark.parametrize(
    ("path", "kind", "fields"),
    [
        ("/v1/chat/completions", ChatRequest, {"messages": [USER]}),
        ("/v1/completions", CompletionRequest, {"prompt": "hi"}),
        ("/v1/responses", ResponsesRequest, {"input": "hi"}),
        ("/v1/messages", MessagesRequest, {"messages": [USER], "max_tokens": 1}),
        ("/v1/embeddings", EmbeddingsRequest, {"input": "hi"}),
        ("/inference/v1/generate", GenerateRequest, {"token_ids": [1], "sampling_params": {}}),
    ],
)
def test_the_path_chooses_the_kind_and_unknown_fields_are_kept(
    path: str, kind: type[Body], fields: dict[str, Any]
) -> None:
    raw = encode(model="m", brand_new={"x": 1}, **fields)

    body = PARSERS[path](raw)

    assert type(body) is kind
    assert body.model == "m"
    assert request(body, raw).fields == {"model": "m", "brand_new": {"x": 1}, **fields}
    # It may have been asked for at a path with a prefix, by way of a proxy.
    parse = parser_by_suffix(f"/tenant/a{path}?x=/v1/embeddings")
    assert parse is not None
    assert type(parse(raw)) is kind


def test_a_path_that_says_nothing_is_a_completion() -> None:
    assert parser_by_suffix("/") is parse_completion


def test_a_path_that_says_something_else_carries_no_prompt() -> None:
    assert parser_by_suffix("/v1/audio/transcriptions") is None


CACHE_READS = Path(__file__).parents[1] / "golden" / "openai_api" / "vllm_cache_reads.json"


def test_which_requests_read_no_cache_is_vllms_answer() -> None:
    rows = json.loads(CACHE_READS.read_text())

    wrong = [
        row["body"]
        for row in rows
        if reads_cache(PARSERS[row["path"]](msgspec.json.encode(row["body"]))) != row["reads"]
    ]

    assert wrong == []
    assert {(row["path"], row["reads"]) for row in rows} > {
        ("/v1/chat/completions", False),
        ("/v1/completions", False),
    }


def given_fields(body: Body) -> dict[str, Any]:
    return {name: getattr(body, name) for name in body.__struct_fields__}


GUIDED: dict[str, Any] = {
    "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "a"},
    "structural_tag": {"structures": [], "triggers": []},
    "guided_json": {"type": "object"},
    "guided_regex": "a",
    "guided_choice": ["a"],
    "guided_grammar": "start: A",
    "guided_json_object": True,
    "guided_whitespace_pattern": " ?",
}

# Every field that is acted on, with a value of its type.
OPTIONAL: dict[type[Body], dict[str, Any]] = {
    ChatRequest: {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "documents": [{"title": "t", "text": "x"}],
        "chat_template": "{{ messages }}",
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": False,
        "continue_final_message": True,
        "add_special_tokens": True,
        "reasoning_effort": "low",
        **GUIDED,
        "truncate_prompt_tokens": -1,
        "truncation_side": "right",
        "echo": True,
        "prompt_logprobs": 1,
        "return_token_ids": True,
        "return_prompt_text": True,
        "mm_processor_kwargs": {"max_pixels": 1},
        "media_io_kwargs": {"image": {}},
        "use_beam_search": False,
        "n": 2,
        "kv_transfer_params": {"prompt_token_ids": [1]},
        "ec_transfer_params": {"a": 1},
        "priority": 1,
        "cache_salt": "s",
        "max_tokens": 1,
        "max_completion_tokens": 2,
        "stream": True,
        "vllm_xargs": {"a": 1},
    },
    CompletionRequest: {
        **GUIDED,
        "echo": True,
        "logprobs": 2,
        "prompt_logprobs": 1,
        "return_token_ids": True,
        "use_beam_search": False,
        "n": 2,
        "prompt_embeds": "AA==",
        "suffix": "x",
        "add_special_tokens": False,
        "truncate_prompt_tokens": 5,
        "truncation_side": "left",
        "kv_transfer_params": {"a": 1},
        "ec_transfer_params": {"a": 1},
        "priority": 1,
        "cache_salt": "s",
        "max_tokens": 1,
        "stream": True,
        "vllm_xargs": {"a": 1},
    },
    ResponsesRequest: {
        "instructions": "be brief",
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": "none",
        "previous_response_id": "resp_1",
        "previous_input_messages": [{}],
        "enable_response_messages": True,
        "text": {"format": {"type": "json_object"}},
        "structured_outputs": {"regex": "a"},
        "reasoning": {"effort": "low"},
        "chat_template_kwargs": {"a": 1},
        "truncation": "auto",
        "kv_transfer_params": {"a": 1},
        "ec_transfer_params": {"a": 1},
        "priority": 1,
        "cache_salt": "s",
        "max_output_tokens": 9,
        "background": False,
        "stream": True,
        "vllm_xargs": {"a": 1},
    },
    MessagesRequest: {
        "system": "be brief",
        "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "low"},
        "chat_template_kwargs": {"a": 1},
        "kv_transfer_params": {"a": 1},
        "ec_transfer_params": {"a": 1},
        "priority": 1,
        "cache_salt": "s",
        "max_tokens": 9,
        "stream": True,
        "vllm_xargs": {"a": 1},
    },
    EmbeddingsRequest: {
        "messages": [USER],
        "add_special_tokens": False,
        "truncate_prompt_tokens": 5,
        "truncation_side": "left",
        "padding": "do_not_pad",
        "add_generation_prompt": True,
        "continue_final_message": True,
        "chat_template": "x",
        "chat_template_kwargs": {"a": 1},
        "priority": 1,
        "cache_salt": "s",
    },
}
REQUIRED: dict[type[Body], tuple[Parse, dict[str, Any]]] = {
    ChatRequest: (PARSERS["/v1/chat/completions"], {"messages": [USER]}),
    CompletionRequest: (PARSERS["/v1/completions"], {"prompt": "hi"}),
    ResponsesRequest: (PARSERS["/v1/responses"], {"input": [USER]}),
    MessagesRequest: (PARSERS["/v1/messages"], {"messages": [USER]}),
    EmbeddingsRequest: (PARSERS["/v1/embeddings"], {"input": ["a", "b"]}),
}


@pytest.mark.parametrize("kind", OPTIONAL)
def test_every_optional_field_is_read_as_it_was_sent(kind: type[Body]) -> None:
    parse, required = REQUIRED[kind]
    fields = {"model": "m", **required, **OPTIONAL[kind]}

    body = parse(msgspec.json.encode(fields))

    assert given_fields(body) == fields  # so every field of the type is among them


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    deep = b'{"model":"m","messages":[],"response_format":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    with pytest.raises(InvalidRequestError, match=r"^body: nested too deeply$"):
        PARSERS["/v1/chat/completions"](deep)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", "\ud800"),
        ("stop", ["end", "\udfff"]),
        ("bad_words", ["\ud800"]),
        ("request_id", "\ud800"),
        ("session_id", "\ud800"),
        ("vllm_xargs", {"\ud800": 1}),
        ("vllm_xargs", {"a": ["b", "\ud800"]}),
    ],
)
@pytest.mark.parametrize("body", [{"messages": [USER]}, {"prompt": "hi"}])
def test_what_vllm_cannot_send_to_its_core_is_named(
    body: dict[str, object], name: str, value: object
) -> None:
    raw = json.dumps({"model": "m", **body, name: value}).encode()

    with pytest.raises(InvalidRequestError, match=f"^{name}: has a lone surrogate") as e:
        (parse_chat if "messages" in body else parse_completion)(raw)

    assert e.value.param == name


@pytest.mark.parametrize("kind", OPTIONAL)
def test_a_null_is_an_absent_field(kind: type[Body]) -> None:
    parse, required = REQUIRED[kind]
    nulls = dict.fromkeys(OPTIONAL[kind].keys() - {"truncation"})

    bare = parse(encode(model="m", **required))

    assert parse(encode(model="m", **required, **nulls)) == bare


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in OPTIONAL for name in OPTIONAL[kind]]
)
def test_a_field_of_the_wrong_type_is_named(kind: type[Body], name: str) -> None:
    parse, required = REQUIRED[kind]
    anything = {"vllm_xargs", "prompt_embeds", "previous_input_messages", "text", *GUIDED}
    anything |= {"priority", "messages"}  # read where it is refused; beside `input`, not at all
    if kind is EmbeddingsRequest:  # of its chat alone
        anything |= {*OPTIONAL[ChatRequest]} - {"add_special_tokens", "truncate_prompt_tokens"}
        anything -= {"truncation_side", "cache_salt"}

    if name not in anything:
        with pytest.raises(InvalidRequestError, match=f"^{name}: ") as e:
            parse(encode(model="m", **required, **{name: 1.5}))

        assert e.value.param == name


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            "/v1/completions",
            {},
            "invalid completions request: must have prompt field",
        ),
        (
            "/v1/completions",
            {"prompt": 7},
            "invalid completions request: must have prompt field"
            " (prompt: expected `str | array | null`, got `int`)",
        ),
        (
            "/v1/chat/completions",
            {},
            "invalid chat completions request: must have valid messages field",
        ),
        (
            "/v1/chat/completions",
            {"messages": "x"},
            "invalid chat completions request: must have valid messages field"
            " (messages: expected `array`, got `str`)",
        ),
        ("/v1/responses", {}, "invalid responses request: must have input field"),
        ("/v1/responses", {"input": None}, "invalid responses request: must have input field"),
        (
            "/v1/responses",
            {"input": 5},
            "invalid responses request: must have input field"
            " (input: expected `str | array | null`, got `int`)",
        ),
        ("/v1/embeddings", {}, "invalid embeddings request: must have input field"),
        (
            "/inference/v1/generate",
            {"sampling_params": {}},
            "invalid generate request: must have token_ids field",
        ),
        (
            "/inference/v1/generate",
            {"token_ids": [1]},
            "invalid generate request: must have sampling_params field",
        ),
    ],
)
def test_what_a_kind_must_have_is_said_as_llm_d_says_it(
    path: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError) as e:
        PARSERS[path](encode(model="m", **fields))

    assert str(e.value) == message
    assert e.value.param in ("prompt", "messages", "input", "token_ids", "sampling_params")


@pytest.mark.parametrize("path", PARSERS)
@pytest.mark.parametrize("given", [{}, {"model": None}, {"model": ""}])
def test_a_request_may_name_no_model_at_every_path(path: str, given: dict[str, Any]) -> None:
    fields = {"messages": [USER], "prompt": "x", "input": "x", **given}
    fields |= {"token_ids": [1], "sampling_params": {}}

    assert PARSERS[path](msgspec.json.encode(fields)).model == ""


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b"", "body: not valid JSON: Input data was truncated", None),
        (b'{"model": "m"', "body: not valid JSON: Input data was truncated", None),
        (b"[1]", "body: expected `object`, got `array`", None),
        (
            encode(model=3, messages=[USER]),
            "model not found in request body (model: expected `str`, got `int`)",
            "model",
        ),
        (
            encode(model="m", messages=[]),
            "invalid chat completions request: must have valid messages field"
            " (messages: must not be empty)",
            "messages",
        ),
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
    assert parse_completion(encode(model="m", prompt=prompt)).prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt: must not be empty"),
        (["a", 1], "prompt: must not mix text and token ids"),
        ([None], "prompt[0]: expected `int | str | array`, got `null`"),
    ],
)
def test_a_bad_prompt_is_named(prompt: object, message: str) -> None:
    with pytest.raises(InvalidRequestError) as e:
        parse_completion(encode(model="m", prompt=prompt))

    assert str(e.value) == message


@pytest.mark.parametrize("fields", [{}, {"prompt": None}])
def test_a_prompt_is_missing_only_beside_embeddings(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="must have prompt field"):
        parse_completion(encode(model="m", **fields))

    assert parse_completion(encode(model="m", prompt_embeds="x", **fields)).prompts == []


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_named_error(raw: bytes) -> None:
    for parse in PARSERS.values():
        with suppress(InvalidRequestError):
            parse(raw)


def outcome(parse: Parse, fields: dict[str, object]) -> str:
    raw = msgspec.json.encode(fields)
    try:
        parsed = parse(raw)
    except InvalidRequestError as e:
        return "named error" if e.param else "error without a name"
    return "request" if request(parsed, raw).fields == fields else "fields lost"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = {name for kind in (*OPTIONAL, GenerateRequest) for name in kind.__struct_fields__}
names = st.sampled_from(sorted(FIELDS | {"x"}))


@given(st.dictionaries(names, json_values))
def test_any_json_object_is_a_request_or_a_named_error(fields: dict[str, object]) -> None:
    for parse in PARSERS.values():
        assert outcome(parse, fields) in ("request", "named error")
