"""Responses: the ids we derive are those the engine renders, and a growing one is matched as the
engine reuses it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from tests.engines import client
from tests.engines.engine import BLOCK_SIZE, MAX_MODEL_LEN, MODEL, RealEngine
from tests.engines.waiting import wait_until
from tests.golden.prompts.responses_rules import RULES, user, words

from inferway.errors import RenderError, RequestError
from inferway.openai_api.requests import parse_responses
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.prompts.served import ServedModel

LONG = "the rain in spain falls mainly on the plain " * 12
TOO_LONG: dict[str, Any] = {"model": MODEL, "input": LONG * 60}
CUT = [
    TOO_LONG | {"truncation": "auto", "max_output_tokens": 8},
    TOO_LONG | {"truncation": None, "max_output_tokens": 8},
]
AT_FAULT = [
    TOO_LONG,
    TOO_LONG | {"truncation": "auto"},  # as much is kept as the context holds: no room is left
    {"model": MODEL, "input": "hi", "max_output_tokens": MAX_MODEL_LEN + 1},
]
BODIES: list[dict[str, Any]] = [
    *({**body, "model": MODEL} for rule in RULES for body in RULES[rule]),
    *CUT,
    *AT_FAULT,
]
REFUSED, ENGINES_OWN = "refused", "the engine's own"


@pytest.fixture(scope="module")
def our_ids(model_dir: Path) -> list[Any]:
    renderer = Renderer()
    key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(str(model_dir)))
    model = ServedModel(MODEL, ModelPrompts(renderer, key, MAX_MODEL_LEN))

    async def ids(body: dict[str, Any]) -> Any:
        try:
            tokenized = await parse_responses(msgspec.json.encode(body)).tokenized_by(model)
        except RenderError:
            return ENGINES_OWN
        except RequestError:
            return REFUSED
        return tokenized.token_ids[0].tolist()

    async def all_ids() -> list[Any]:
        return [await ids(body) for body in BODIES]

    try:
        return asyncio.run(all_ids())
    finally:
        renderer.close()


def engine_ids(engine: RealEngine, body: dict[str, Any]) -> Any:
    answer = client.post(f"{engine.url}/v1/responses/render", body)
    return answer.json["token_ids"] if answer.status == 200 else REFUSED


def test_ids_are_those_the_engine_renders(
    engines: Sequence[RealEngine], our_ids: Sequence[Any]
) -> None:
    theirs = [engine_ids(engines[0], body) for body in BODIES]

    differing = [
        (body, ours, found)
        for body, ours, found in zip(BODIES, our_ids, theirs, strict=True)
        if ours not in (ENGINES_OWN, found)
    ]
    assert differing == []
    assert sum(isinstance(ids, list) for ids in our_ids) >= 95
    assert [len(ids) for ids in our_ids[-5:-3]] == [MAX_MODEL_LEN - 1] * 2
    assert our_ids[-3:] == [REFUSED] * 3


def believed(gateway: str, items: list[dict[str, Any]]) -> dict[str, int]:
    """Blocks of the chat that these items are."""
    body = {"model": MODEL, "messages": items, "add_special_tokens": True}
    found: dict[str, int] = client.post(f"{gateway}/score_chat_completions", body).json[
        "pod_scores"
    ]
    return found


def test_a_growing_response_hits_the_cache_of_the_engine_it_was_at(gateway: str) -> None:
    api = openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0)
    items: list[Any] = []
    chat: list[dict[str, Any]] = []  # the same
    seen = []
    for turn in range(3):
        items.append(user(words(f"{LONG} and then? ({turn})")))
        chat.append(user(f"{LONG} and then? ({turn})"))
        raw = api.responses.with_raw_response.create(
            model=MODEL, input=items, max_output_tokens=4, temperature=0
        )
        answer = raw.parse()
        assert answer.usage is not None
        engine = raw.headers["x-inferway-engine"]
        cached = answer.usage.input_tokens_details.cached_tokens // BLOCK_SIZE
        seen.append((engine, int(raw.headers["x-inferway-matched-blocks"]), cached))
        blocks = answer.usage.input_tokens // BLOCK_SIZE
        given = list(chat)
        wait_until(
            lambda: believed(gateway, given)[engine] >= blocks,  # noqa: B023
            f"{blocks} blocks at {engine}",
            lambda: believed(gateway, given),  # noqa: B023
            seconds=10,
        )
        items += [item.model_dump() for item in answer.output]  # as the engine has sent them
        chat.append({"role": "assistant", "content": answer.output_text})

    assert len({engine for engine, _, _ in seen}) == 1
    assert seen[0][1:] == (0, 0)
    assert all(matched == cached > 0 for _, matched, cached in seen[1:])


def test_a_streamed_response_ends_with_its_usage(gateway: str) -> None:
    with openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0) as api:
        events = list(
            api.responses.create(
                model=MODEL, input="Say hello.", max_output_tokens=4, temperature=0, stream=True
            )
        )

    (ended,) = [e for e in events if e.type in ("response.completed", "response.incomplete")]
    assert ended.response.usage is not None
    assert ended.response.usage.output_tokens == 4
