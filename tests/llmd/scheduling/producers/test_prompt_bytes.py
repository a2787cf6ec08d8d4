"""What is hashed of a request."""

from __future__ import annotations

import base64
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.stored import rows

from inferway.errors import RequestError
from inferway.openai_api.kinds import PARSERS
from inferway.openai_api.requests import (
    Body,
    ChatRequest,
    CompletionRequest,
    MessagesRequest,
    parse_chat,
)
from inferway_llmd.scheduling.producers.prompt_bytes import prompt_bytes, setting_bytes

ALL = 10_000
VERDICTS = Path(__file__).parents[3] / "golden" / "vllm_verdicts.jsonl.xz"
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "¿Qué?"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "4"},
]


def body(path: str, json: bytes) -> Body:
    return PARSERS[path](json)


def test_a_conversation_that_goes_on_begins_with_its_past() -> None:
    for turns in range(1, len(TURNS)):
        (past,) = prompt_bytes(ChatRequest(model="m", messages=TURNS[:turns]), ALL)
        (now,) = prompt_bytes(ChatRequest(model="m", messages=TURNS), ALL)

        assert now.startswith(past)
        assert len(now) > len(past)


def test_spaces_between_the_parts_of_a_body_do_not_count() -> None:
    spaced = parse_chat(b'{ "model": "m",\n "messages": [ {"role":  "user", "content": "a b"} ] }')
    dense = parse_chat(b'{"messages":[{"role":"user","content":"a b"}],"model":"m"}')

    assert prompt_bytes(spaced, ALL) == prompt_bytes(dense, ALL)


def test_a_long_history_is_encoded_no_further_than_it_is_hashed() -> None:
    many = [{"role": "user", "content": "x" * 90}] * 1000

    (found,) = prompt_bytes(ChatRequest(model="m", messages=many), 1000)

    assert 1000 <= len(found) < 1200


@pytest.mark.parametrize(
    ("prompt", "bytes_"),
    [
        ("añb", ["añb".encode()]),
        (["one", "two"], [b"one", b"two"]),
        ([1, 258], [b"\x01\0\0\0\x02\x01\0\0"]),
        ([[1], [2, 3]], [b"\x01\0\0\0", b"\x02\0\0\0\x03\0\0\0"]),
    ],
)
def test_completions(prompt: Any, bytes_: list[bytes]) -> None:
    assert prompt_bytes(CompletionRequest(model="m", prompt=prompt), ALL) == bytes_


@pytest.mark.parametrize(
    ("path", "json", "prompts"),
    [
        ("/v1/responses", b'{"model":"m","input":"hi"}', [b"hi"]),
        ("/v1/responses", b'{"model":"m","input":[{"a":1},{"b":2}]}', [b'{"a":1},{"b":2}']),
        ("/v1/messages", b'{"messages":[{"a":1},{"b":2}],"system":"s"}', [b'{"a":1},{"b":2}']),
        ("/v1/embeddings", b'{"model":"m","input":"hi"}', [b"hi"]),
        ("/v1/embeddings", b'{"model":"m","input":["a","b"]}', [b"a", b"b"]),
        ("/v1/embeddings", b'{"model":"m","input":[1,2]}', [b"\x01\0\0\0\x02\0\0\0"]),
        ("/v1/embeddings", b'{"model":"m","input":[[1],[2]]}', [b"\x01\0\0\0", b"\x02\0\0\0"]),
        ("/v1/embeddings", b'{"model":"m","messages":[{"a":1},{"b":2}]}', [b'{"a":1},{"b":2}']),
        ("/v1/embeddings", b'{"input":5,"messages":[{"a":1}]}', [b'{"a":1}']),
        ("/v1/embeddings", b'{"input":[null,["a"]]}', [b"null", b'"a"']),
        ("/v1/completions", b'{"prompt":[18446744073709551617]}', [b"\x01\0\0\0"]),
    ],
)
def test_other_bodies(path: str, json: bytes, prompts: list[bytes]) -> None:
    assert prompt_bytes(body(path, json), ALL) == prompts


def test_a_billing_header_sets_no_messages_apart() -> None:
    def settings(hash: str, text: str) -> bytes:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cch={hash};"}
        system = [header, {"type": "text", "text": text}]
        return setting_bytes(MessagesRequest(messages=TURNS, system=system))

    assert settings("1", "a") == settings("2", "a") != settings("1", "b")


def test_every_body_that_is_taken_has_bytes() -> None:
    num_bodies = 0
    for row in rows(VERDICTS):
        if row["taken"] and row["path"] in PARSERS:
            with suppress(RequestError):
                read = body(row["path"], base64.b64decode(row["body"]))
                num_bodies += len(prompt_bytes(read, ALL)) >= 0
                setting_bytes(read)

    assert num_bodies > 900


def test_settings_are_what_is_in_the_prompt_but_not_in_the_messages() -> None:
    plain = ChatRequest(model="m", messages=TURNS)
    settings = [
        setting_bytes(ChatRequest(model="m", messages=TURNS, tools=[{"name": "f"}])),
        setting_bytes(ChatRequest(model="m", messages=TURNS, documents=[{"name": "f"}])),
        setting_bytes(ChatRequest(model="m", messages=TURNS, chat_template="{{ messages }}")),
        setting_bytes(ChatRequest(model="m", messages=TURNS, chat_template_kwargs={"a": 1})),
    ]

    assert setting_bytes(plain) == b""
    assert len({*settings, b""}) == 5
