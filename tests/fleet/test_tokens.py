"""The ids we render are the ids the engine sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.fleet import client
from tests.fleet.chats import CHAT, Request, all_requests
from tests.fleet.engine import MAX_MODEL_LEN, RealEngine

from inferway.openai_api.requests import parse_chat, parse_completion
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.renderer import GetOrCreateTokenizerKeyRequest, Renderer

REQUESTS = all_requests()


@pytest.fixture(scope="module")
def prompts(model_dir: Path) -> Iterator[ModelPrompts]:
    renderer = Renderer()
    key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(str(model_dir)))
    yield ModelPrompts(renderer, key, MAX_MODEL_LEN, trust_request_templates=True)
    renderer.close()


@pytest.fixture(scope="module")
def engines_ids(engines: Sequence[RealEngine]) -> dict[str, object]:
    """What the engines saw, by the request's name; both work, one request at a time each."""
    seen: dict[str, object] = {}
    left = iter(REQUESTS)

    def work(engine: RealEngine) -> None:
        for request in left:
            seen[request.name] = prompt_token_ids(engine, request)

    with ThreadPoolExecutor(len(engines)) as threads:
        list(threads.map(work, engines))
    return seen


def prompt_token_ids(engine: RealEngine, request: Request) -> object:
    body = {**request.body, "return_token_ids": True, "max_tokens": 1}
    answer = client.post(engine.url + request.path, body)
    if answer.status != 200:
        return answer.json  # the test shows it beside our ids
    if request.path == CHAT:
        return [answer.json["prompt_token_ids"]]
    return [choice["prompt_token_ids"] for choice in answer.json["choices"]]


def our_ids(prompts: ModelPrompts, request: Request) -> list[list[int]]:
    raw = json.dumps(request.body).encode()
    parse = parse_chat if request.path == CHAT else parse_completion
    return [ids.tolist() for ids in asyncio.run(prompts.tokenize(parse(raw).body)).token_ids]


def test_there_are_enough_of_them_and_each_has_its_own_name() -> None:
    assert len({request.name for request in REQUESTS}) == len(REQUESTS) >= 60


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.name)
def test_our_ids_are_the_engines(
    request_: Request, prompts: ModelPrompts, engines_ids: dict[str, object]
) -> None:
    assert our_ids(prompts, request_) == engines_ids[request_.name]
