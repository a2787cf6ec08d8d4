"""Which server-sent events carry tokens."""

from __future__ import annotations

import pytest

from inferway.openai_api.token_events import bears_tokens

CHAT = b'data: {"id":"c","choices":[{"index":0,"delta":%b,"finish_reason":null}]}\n\n'
ROLE = CHAT % b'{"role":"assistant","content":""}'
TOKEN = CHAT % b'{"content":"Hello"}'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
CREATED = b'event: response.created\ndata: {"type":"response.created"}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"delta":"Hello"}\n\n'


@pytest.mark.parametrize(
    "events",
    [
        TOKEN,
        ROLE + TOKEN,
        TOKEN + USAGE + DONE,
        CHAT % b'{"role":"assistant","content":" token"}',
        CHAT % b'{"content":"\\"role\\":\\"assistant\\",\\"content\\":\\"\\""}',
        b'data: {"choices":[{"text":"Hello","index":0}]}\n\n',
        CREATED + DELTA,
        b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n',
    ],
)
def test_text_carries_tokens(events: bytes) -> None:
    assert bears_tokens(events)


@pytest.mark.parametrize(
    "events",
    [
        ROLE,
        USAGE,
        DONE,
        USAGE + DONE,
        b": a comment\n\n",
        b'data: {"error":{"message":"no"}}\n\n',
        CREATED,
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":'
        b'{"type":"signature_delta","signature":"a"},"index":0}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":2}}\n\n',
    ],
)
def test_the_role_the_usage_an_error_and_the_end_carry_none(events: bytes) -> None:
    assert not bears_tokens(events)
