"""What cannot be answered is refused by the gateway, and no engine hears of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.engines import client
from tests.engines.chats import CHAT, COMPLETION, user
from tests.engines.engine import MAX_MODEL_LEN, MODEL, RealEngine
from tests.engines.gateway import requests_seen, wait_until_probed

HI = [user("Hi")]

# path, body, status, the field that the error names
BAD: dict[str, tuple[str, Any, int, str | None]] = {
    "malformed JSON": (CHAT, b'{"model": "smollm2", "messages": [', 400, None),
    "not an object": (CHAT, [1], 400, None),
    "no messages": (CHAT, {"model": MODEL}, 400, "messages"),
    "no message": (CHAT, {"model": MODEL, "messages": []}, 400, "messages"),
    "messages of another type": (CHAT, {"model": MODEL, "messages": "Hi"}, 400, "messages"),
    "a message without role": (
        CHAT,
        {"model": MODEL, "messages": [{"content": "Hi"}]},
        400,
        "messages[0].role",
    ),
    "an unknown model": (CHAT, {"model": "gpt-9", "messages": HI}, 404, "model"),
    "no prompt": (COMPLETION, {"model": MODEL}, 400, "prompt"),
    "a chat that is too long": (
        CHAT,
        {"model": MODEL, "messages": [user("word " * MAX_MODEL_LEN)]},
        400,
        "messages",
    ),
    "a prompt without room for an answer": (
        COMPLETION,
        {"model": MODEL, "prompt": [7] * MAX_MODEL_LEN},
        400,
        "max_tokens",
    ),
    "a continued message and a generation prompt": (
        CHAT,
        {"model": MODEL, "messages": HI, "continue_final_message": True},
        400,
        "continue_final_message",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_the_gateway_answers_and_no_engine_is_asked(
    case: tuple[str, Any, int, str | None], gateway: str, engines: Sequence[RealEngine]
) -> None:
    path, body, status, field = case
    wait_until_probed(gateway)
    before = requests_seen(engines)

    answer = client.post(gateway + path, body)

    assert answer.status == status
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert answer.json["error"]["param"] == field
    assert requests_seen(engines) == before


@pytest.mark.parametrize("name", BAD)
def test_the_engine_would_have_refused_it_too(name: str, engines: Sequence[RealEngine]) -> None:
    path, body, status, _ = BAD[name]

    assert client.post(engines[0].url + path, body).status == status


def test_a_body_without_model_is_answered_as_by_an_engine(
    gateway: str, engines: Sequence[RealEngine]
) -> None:
    body = {"messages": HI, "max_tokens": 1}

    answers = [client.post(url + CHAT, body) for url in (gateway, engines[0].url)]

    assert [(answer.status, answer.json["model"]) for answer in answers] == [(200, MODEL)] * 2
