"""Messages of a simulated engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.sim.doubles import named_events
from tests.sim.test_other_kinds import shape
from tests.sim.test_server import CHAT, chat, posting, serving

from inferway_sim.engine import SimulatedEngine

GOLDEN = Path(__file__).parents[1] / "golden" / "openai_api" / "vllm_messages.json"
REAL = json.loads(GOLDEN.read_text())["text"]
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"


def message(text: Any = "Good morning", **fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    return {"model": "m", "messages": said, "max_tokens": 60, **fields}


def prompt_tokens(usage: dict[str, int]) -> int:
    """All of them: what the cache has taken or given is not in the first."""
    cached = usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached


def streamed(**fields: Any) -> str:
    async def scenario(_: SimulatedEngine, client: aiohttp.ClientSession) -> Any:
        async with client.post(MESSAGES, json=message(stream=True, **fields)) as response:
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            return await response.text()

    return str(serving(scenario))


def test_a_message_says_back_what_it_was_told_and_counts_its_tokens() -> None:
    [(status, answer)] = posting((MESSAGES, message("abc", system="s")))

    assert (status, answer["type"], answer["stop_reason"]) == (200, "message", "end_turn")
    assert answer["content"] == [{"type": "text", "text": "abc"}]
    prompt = len("<system>s<user>abc<assistant>")
    assert answer["usage"] == {
        "input_tokens": prompt - 16,
        "output_tokens": 4,
        "cache_creation_input_tokens": 16,  # the full block
        "cache_read_input_tokens": 0,
    }


def test_messages_and_a_chat_of_the_same_tokens_share_the_cache() -> None:
    answers = posting((CHAT, chat("Good morning")), (MESSAGES, message("Good morning")))

    (_, first), (_, second) = answers
    prompt, usage = first["usage"]["prompt_tokens"], second["usage"]
    assert usage["cache_read_input_tokens"] == (prompt - 1) // 16 * 16 > 0
    assert prompt_tokens(usage) == prompt


def test_answers_have_the_form_of_vllms_own_converters() -> None:
    (_, cut), (_, ended) = posting((MESSAGES, message(max_tokens=3)), (MESSAGES, message()))

    assert (shape(cut), list(cut)) == (shape(REAL["whole"]), list(REAL["whole"]))
    assert (cut["stop_reason"], ended["stop_reason"]) == ("max_tokens", "end_turn")
    assert shape(ended) == shape(REAL["ended"])


def test_streams_have_the_events_of_vllms_own_converters() -> None:
    found, real = named_events(streamed(max_tokens=2)), named_events(REAL["stream"])

    assert shape(found) == shape(real)
    for ours, theirs in zip(found, real, strict=True):
        assert list(ours) == list(theirs)
    deltas = [event["delta"]["text"] for event in found if event["type"] == "content_block_delta"]
    assert deltas == ["G", "o"]
    assert found[0]["message"]["usage"]["output_tokens"] == 0
    assert found[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == 2


def test_a_stream_without_text_has_no_block() -> None:
    kinds = [event["type"] for event in named_events(streamed(text=""))]

    assert kinds == ["message_start", "message_delta", "message_stop"]


def test_tokens_are_counted_as_they_are_used() -> None:
    asked = message([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], system="s")

    (_, counted), (_, answer) = posting((COUNT, asked), (MESSAGES, asked))

    number = prompt_tokens(answer["usage"])
    assert counted == {
        "input_tokens": number,
        "context_management": {"original_input_tokens": number},
    }


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
def test_a_model_that_is_not_there_is_an_error_in_anthropics_form(path: str) -> None:
    [(status, answer)] = posting((path, message(model="nobody")))

    assert status == 404
    assert (answer["type"], answer["error"]["type"]) == ("error", "NotFoundError")
    assert "nobody" in answer["error"]["message"]


def test_what_does_not_fit_is_an_error_in_anthropics_form() -> None:
    [(status, answer)] = posting((MESSAGES, message("x" * 100)), max_model_len=50)

    assert (status, answer["type"]) == (400, "error")
    assert answer["error"]["type"] == "BadRequestError"
    assert "maximum context length is 50 tokens" in answer["error"]["message"]


def test_a_message_says_how_long_its_answer_may_be() -> None:
    [(status, answer)] = posting((MESSAGES, message(max_tokens=None)))

    assert status == 400
    assert answer["error"]["param"] == "max_tokens"  # as all bodies that engines cannot read
