"""Anthropic's own client, through the gateway to real engines, whose answers have the form of
simulated ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import anthropic
import pytest
from tests.engines import client as engine_client
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine
from tests.sim.test_messages import message, streamed
from tests.sim.test_other_kinds import shape
from tests.sim.test_server import posting

LONG = "the rain in spain falls mainly on the plain " * 12
HI: Any = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Say hello."}]}


@pytest.fixture
def api(gateway: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway, api_key="none", max_retries=0) as api:
        yield api


def test_an_answer_and_a_stream_are_read(api: anthropic.Anthropic) -> None:
    whole = api.messages.create(**HI)
    with api.messages.stream(**HI) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()

    assert streamed.usage.output_tokens == whole.usage.output_tokens == 4
    assert streamed.stop_reason == whole.stop_reason == "max_tokens"
    assert text


def test_a_growing_conversation_is_matched_as_the_engine_reuses_it(
    api: anthropic.Anthropic,
) -> None:
    said: list[Any] = []
    seen = []
    for turn in range(3):
        said.append({"role": "user", "content": f"{LONG} messages, and then? ({turn})"})
        raw = api.messages.with_raw_response.create(**{**HI, "messages": said})
        answer = raw.parse()
        cached = (answer.usage.cache_read_input_tokens or 0) // BLOCK_SIZE
        seen.append((raw.headers["x-inferway-engine"], cached))
        said.append({"role": "assistant", "content": [b.model_dump() for b in answer.content]})

    assert len({engine for engine, _ in seen}) == 1
    assert all(cached > 0 for _, cached in seen[1:])


def test_tokens_are_counted_as_they_are_used(api: anthropic.Anthropic) -> None:
    asked = {**HI, "system": LONG}
    answer = api.messages.create(**asked)
    count = api.messages.count_tokens(**{k: v for k, v in asked.items() if k != "max_tokens"})

    usage = answer.usage
    cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    assert count.input_tokens == usage.input_tokens + cached


def test_a_simulated_engines_answers_have_the_form_of_a_real_ones(
    engines: Sequence[RealEngine],
) -> None:
    url = f"{engines[0].url}/v1/messages"
    whole = engine_client.post(url, HI).json
    with engine_client.open_stream(url, {**HI, "max_tokens": 2, "stream": True}) as stream:
        events = stream.read().decode()
    ((_, simulated),) = posting(("/v1/messages", message(max_tokens=4)))

    assert shape(simulated) == shape(whole)
    assert shape(_data(streamed(max_tokens=2))) == shape(_data(events))


@pytest.mark.parametrize(
    "body",
    [
        {**HI, "model": "nobody"},
        {**HI, "max_tokens": None},
        {**HI, "messages": [{"role": "user", "content": LONG * 100}]},
    ],
)
def test_a_simulated_engines_errors_have_the_form_of_a_real_ones(
    engines: Sequence[RealEngine], body: dict[str, Any]
) -> None:
    real = engine_client.post(f"{engines[0].url}/v1/messages", body)
    named = {**body, "model": "m"} if body["model"] == MODEL else body
    ((status, simulated),) = posting(("/v1/messages", named), max_model_len=512)

    assert (status, simulated.keys()) == (real.status, real.json.keys())
    assert simulated["error"].keys() == real.json["error"].keys()
    if "type" in simulated:  # the body could be read
        assert simulated["error"]["type"] == real.json["error"]["type"]


def _data(stream: str) -> list[Any]:
    return [json.loads(event.partition("data: ")[2]) for event in stream.split("\n\n") if event]
