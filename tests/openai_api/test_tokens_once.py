"""Which requests may carry their prompt's ids, and what becomes of their bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferway.openai_api.kinds import PARSERS
from inferway.openai_api.tokens_once import why_text, with_ids

CHAT, COMPLETION, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = "/v1/messages"
PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETION: {"prompt": "hi"},
    RESPONSE: {"input": "hi"},
    MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    "/v1/embeddings": {"input": "hi"},
}
TOOL = {"type": "function", "function": {"name": "f"}}


def reason(path: str, **fields: Any) -> str | None:
    return why_text(PARSERS[path](json.dumps({"model": "m", **PROMPTS[path], **fields}).encode()))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *((path, {}) for path in (CHAT, COMPLETION, RESPONSE, MESSAGES)),
        (CHAT, {"tools": [TOOL], "tool_choice": "required"}),
        (CHAT, {"response_format": {"type": "json_object"}, "n": 2, "logprobs": True}),
        (CHAT, {"continue_final_message": True, "add_generation_prompt": False}),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}, "use_beam_search": True}),
        (CHAT, {"echo": False, "return_token_ids": False, "prompt_logprobs": None}),
        (CHAT, {"kv_transfer_params": None, "cache_salt": "s", "stream": True}),
        (COMPLETION, {"logprobs": 1, "n": 2, "add_special_tokens": False}),
        (RESPONSE, {"truncation": "disabled", "store": True}),
        (MESSAGES, {"kv_transfer_params": None, "stream": True}),
    ],
)
def test_what_shapes_no_more_than_the_prompt_or_the_answer_may(
    path: str, fields: dict[str, Any]
) -> None:
    assert reason(path, **fields) is None


@pytest.mark.parametrize(
    ("path", "fields", "why"),
    [
        (CHAT, {"echo": True}, "wants its prompt in the answer"),
        (COMPLETION, {"echo": True}, "wants its prompt in the answer"),
        (CHAT, {"return_prompt_text": True}, "wants its prompt as the engine has rendered it"),
        (CHAT, {"return_token_ids": True}, "wants its prompt's tokens in the engine's own word"),
        (COMPLETION, {"prompt_logprobs": 0}, "wants its prompt's tokens in the engine's own word"),
        (CHAT, {"truncate_prompt_tokens": -1}, "may be cut"),
        (CHAT, {"chat_template": "x"}, "brings a template"),
        (CHAT, {"chat_template_kwargs": {"chat_template": "x"}}, "brings a template"),
        (RESPONSE, {"chat_template_kwargs": {"chat_template": "x"}}, "brings a template"),
        (CHAT, {"kv_transfer_params": {}}, "says itself what is transferred"),
        (MESSAGES, {"kv_transfer_params": {}}, "says itself what is transferred"),
        (COMPLETION, {"prompt": [1, 2]}, "has no single text"),
        (COMPLETION, {"prompt": ["a", "b"]}, "has no single text"),
        (RESPONSE, {"truncation": "auto"}, "may be cut"),
        (RESPONSE, {"truncation": None}, "may be cut"),
        (
            RESPONSE,
            {"enable_response_messages": True},
            "wants its prompt as the engine has rendered it",
        ),
        ("/v1/embeddings", {}, "is of a kind that takes no token ids"),
    ],
)
def test_what_the_engine_answers_otherwise_or_by_its_own_word_stays_text(
    path: str, fields: dict[str, Any], why: str
) -> None:
    assert reason(path, **fields) == why


def test_a_chat_keeps_every_byte_and_gets_the_engine_s_field_behind_them() -> None:
    raw = b' { "messages" : [{"role":"user","content":"}"}], "n":1.0, "kv_transfer_params":null }\n'

    made = with_ids(raw, PARSERS[CHAT](raw), b"[1,2]")

    end = raw.rindex(b"}")
    added = b',"kv_transfer_params":{"prompt_token_ids":[1,2]}'
    assert made == raw[:end] + added + raw[end:]
    assert json.loads(made)["kv_transfer_params"] == {"prompt_token_ids": [1, 2]}


def test_a_completion_gets_them_in_place_of_its_text() -> None:
    raw = b'{"prompt": "a", "user":"prompt", "prompt" : "b\\"}" }'

    made = with_ids(raw, PARSERS[COMPLETION](raw), b"[1,2]")

    assert made == b'{"prompt": "a", "user":"prompt", "prompt" : [1,2] }'


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
def test_a_body_in_another_encoding_stays_as_it_is(path: str, encoding: str) -> None:
    raw = json.dumps({"model": "m", **PROMPTS[path]}).encode(encoding)

    assert with_ids(raw, PARSERS[path](raw), b"[1]") is None


@pytest.mark.parametrize("raw", [b'\xef\xbb\xbf{"messages":[%b]}', b'{"seed":NaN,"messages":[%b]}'])
def test_what_only_python_reads_is_edited_too(raw: bytes) -> None:
    body = raw % b'{"role":"user","content":"\xc3\xa9"}'

    made = with_ids(body, PARSERS[CHAT](body), b"[1]")

    assert made is not None
    assert json.loads(made)["kv_transfer_params"] == {"prompt_token_ids": [1]}
