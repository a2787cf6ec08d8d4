"""Responses and embeddings of a simulated engine."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.sim.doubles import named_events
from tests.sim.test_server import CHAT, chat, posting, serving

from inferway_sim.engine import SimulatedEngine

REAL = json.loads((Path(__file__).parents[1] / "golden" / "vllm" / "responses.json").read_text())
RESPONSES, EMBEDDINGS = "/v1/responses", "/v1/embeddings"


def respond(given: Any = "Good morning", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": given, **fields}


async def events(client: aiohttp.ClientSession, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with client.post(RESPONSES, json={**body, "stream": True}) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        return named_events(await response.text())


def test_a_response_says_back_the_input_and_counts_its_tokens() -> None:
    [(status, answer)] = posting((RESPONSES, respond("abc", instructions="s")))

    assert status == 200
    assert (answer["object"], answer["status"], answer["instructions"]) == (
        "response",
        "completed",
        "s",
    )
    [item] = answer["output"]
    assert item["content"][0]["text"] == "abc"
    assert answer["usage"]["input_tokens"] == len("<system>s<user>abc<assistant>")
    assert answer["usage"]["output_tokens"] == 4


def test_a_response_and_a_chat_of_the_same_tokens_share_the_cache() -> None:
    answers = posting((CHAT, chat("Good morning")), (RESPONSES, respond("Good morning")))

    (_, first), (_, second) = answers
    prompt = first["usage"]["prompt_tokens"]
    assert second["usage"]["input_tokens"] == prompt
    details = second["usage"]["input_tokens_details"]
    assert details["cached_tokens"] == (prompt - 1) // 16 * 16 > 0


def test_a_response_that_is_cut_off_is_incomplete() -> None:
    [(_, answer)] = posting((RESPONSES, respond(max_output_tokens=3)))

    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["content"][0]["text"] == "Goo"


def test_a_streamed_response_comes_as_numbered_events() -> None:
    async def scenario(_: SimulatedEngine, client: aiohttp.ClientSession) -> Any:
        return await events(client, respond("hé"))

    found = serving(scenario)

    kinds = [event["type"].removeprefix("response.") for event in found]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["delta"] for event in found[4:6]] == ["h", "é"]
    assert found[-1]["response"]["usage"]["output_tokens"] == 4
    assert found[0]["response"]["usage"] is None


def shape(value: Any) -> Any:
    """Names, and what of it is null; the values are left out."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return None if value is None else "given"


def test_answers_have_the_form_of_a_real_vllms() -> None:
    async def scenario(_: SimulatedEngine, client: aiohttp.ClientSession) -> Any:
        body = respond("Hello!", max_output_tokens=3)
        async with client.post(RESPONSES, json=body) as answer:
            return await answer.json(), await events(client, body)

    whole, found = serving(scenario)

    real = [json.loads(e.split("data: ")[1]) for e in REAL["stream"].split("\n\n") if e]
    assert shape(whole) == shape(REAL["whole"])
    assert [event["type"] for event in found] == [event["type"] for event in real]
    for ours, theirs in zip(found, real, strict=True):
        assert shape(ours) == shape(theirs), theirs["type"]


@pytest.mark.parametrize(
    "fields", [{"previous_response_id": "r"}, {"given": [{"type": "item_reference", "id": "x"}]}]
)
def test_what_is_no_chat_is_not_simulated(fields: dict[str, Any]) -> None:
    [(status, answer)] = posting((RESPONSES, respond(**fields)))

    assert status == 500
    assert "only the engine renders it" in answer["error"]["message"]


def test_the_same_tokens_have_the_same_embedding() -> None:
    many = {"model": "m", "input": ["ab", "c", "ab"]}
    one = {"model": "m", "input": [97, 98], "encoding_format": "base64"}

    (_, answer), (_, packed) = posting((EMBEDDINGS, many), (EMBEDDINGS, one))

    first, other, same = (item["embedding"] for item in answer["data"])
    assert first == same != other
    assert struct.unpack("<8f", base64.b64decode(packed["data"][0]["embedding"])) == tuple(first)
    assert answer["usage"]["prompt_tokens"] == 5
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]


def test_embeddings_of_chats_are_refused() -> None:
    asked = [
        (EMBEDDINGS, {"model": "m", "input": [{"role": "user", "content": "x"}]}),
        (EMBEDDINGS, {"model": "m", "messages": [{"role": "user", "content": "x"}]}),
    ]

    for status, answer in posting(*asked):
        assert (status, answer["error"]["param"]) == (400, "input")
