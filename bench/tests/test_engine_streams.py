"""The trivial engine's streams come step by step, and are counted."""

from __future__ import annotations

import asyncio

import msgspec
from bench.tests.test_upstream import ask, engine

CHAT = {"model": "m", "messages": [], "stream": True}


def test_a_stream_has_a_role_its_tokens_the_usage_and_an_end() -> None:
    pace = {"tokens": 3, "seconds": 0.001}

    [_, (status, answer), (_, written)] = asyncio.run(
        ask(
            engine(),
            ("/bench/streams", pace),
            ("/v1/chat/completions", CHAT),
            ("/bench/written", None),
        )
    )

    events = answer.decode().split("\n\n")
    assert status == 200
    assert [e.count('"content":" word"') for e in events] == [0, 1, 1, 1, 0, 0, 0]
    assert '"completion_tokens":3' in events[4]
    assert events[5:] == ["data: [DONE]", ""]
    assert msgspec.json.decode(written) == {"events": 6}


def test_with_no_time_between_steps_all_comes_at_once() -> None:
    pace = {"tokens": 1, "seconds": 0}

    [_, (_, answer), (_, written)] = asyncio.run(
        ask(
            engine(),
            ("/bench/streams", pace),
            ("/v1/chat/completions", CHAT),
            ("/bench/written", None),
        )
    )

    assert answer.endswith(b"data: [DONE]\n\n")
    assert msgspec.json.decode(written) == {"events": 4}


def test_a_chat_that_is_no_stream_is_answered_as_ever() -> None:
    pace = {"tokens": 1, "seconds": 0}
    body = {"model": "m", "messages": []}

    [_, (_, answer)] = asyncio.run(
        ask(engine(), ("/bench/streams", pace), ("/v1/chat/completions", body))
    )

    assert msgspec.json.decode(answer)["object"] == "chat.completion"
