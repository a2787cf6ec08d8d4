"""Without the model's tokenizer: what engines render for us is what they see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.engines import client
from tests.engines.chats import CHAT, Request, assistant, chat, requests_by_hand, user
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine
from tests.engines.gateway import cached, engine_of, send, wait_until_believed
from tests.engines.program import Program
from tests.engines.test_routing import TURNS
from tests.engines.waiting import wait_until

from inferway.config import EngineSettings, ModelSettings
from inferway.errors import RenderError
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_facts import discover
from inferway.fleet.remote_prompts import RemotePrompts, RemoteRenderers
from inferway.model import Reason
from inferway.openai_api.requests import parse_chat, parse_completion
from inferway.prompts.served import ModelSource, NoPrompts

REQUESTS = requests_by_hand()
BUDGET_SECONDS = 20.0
SOURCE = ModelSource(MODEL, "/nonexistent", ModelSettings())
NOTHING = NoPrompts(Reason.NO_TOKENIZER, "no tokenizer")

# Ids of each of a request's prompts, or why there are none.
Ids = list[list[int]] | str


async def rendered(prompts: RemotePrompts, request: Request) -> Ids:
    raw = json.dumps(request.body).encode()
    body = parse_chat(raw) if request.path == CHAT else parse_completion(raw)
    try:
        return [ids.tolist() for ids in (await prompts.tokenize(body)).token_ids]
    except RenderError as e:
        return e.reason


async def render_all(engine: RealEngine) -> dict[str, Ids]:
    async with EngineClient() as asking:
        known = Engine(EngineSettings(url=engine.url), ())
        known.facts, _ = await discover(asking, engine.url, [])
        known.healthy = True
        names = {SOURCE.key: MODEL}
        renderers = RemoteRenderers([known], asking, lambda _: names, BUDGET_SECONDS)
        prompts = renderers.around(SOURCE, NOTHING)
        assert isinstance(prompts, RemotePrompts)
        await rendered(prompts, REQUESTS[0])  # finds out what the engine can
        async with asyncio.timeout(120):
            while "proving" in prompts.report()["rendered_by"].values():
                await asyncio.sleep(0.1)
        try:
            return {request.name: await rendered(prompts, request) for request in REQUESTS}
        finally:
            await renderers.close()


def seen(engine: RealEngine, request: Request) -> Ids:
    """The ids that the engine has made of it."""
    body = {**request.body, "return_token_ids": True, "max_tokens": 1}
    answer = client.post(engine.url + request.path, body)
    if answer.status != 200:
        return Reason.REMOTE_FAILED
    if request.path == CHAT:
        return [answer.json["prompt_token_ids"]]
    return [choice["prompt_token_ids"] for choice in answer.json["choices"]]


@pytest.fixture(scope="module")
def told(engines: Sequence[RealEngine]) -> dict[str, Ids]:
    return {request.name: seen(engines[1], request) for request in REQUESTS}


# Fields that /tokenize does not look at, or not as the others do.
UNHEARD = {"documents", "reasoning_effort", "tool_choice", "truncate_prompt_tokens", "suffix"}


@pytest.mark.parametrize(("engine", "unheard"), [(0, set()), (1, UNHEARD)])
def test_ids_that_engines_render_are_those_they_see(
    engines: Sequence[RealEngine], told: Mapping[str, Ids], engine: int, unheard: set[str]
) -> None:
    found = asyncio.run(render_all(engines[engine]))

    unlike = {name for name, ids in found.items() if ids != told[name]}
    assert {name for name in unlike if found[name] != Reason.REMOTE_FAILED} == set()
    assert unlike == {r.name for r in REQUESTS if unheard & r.body.keys()}
    assert len(REQUESTS) >= 30


@pytest.fixture(scope="module")
def gateway(
    engines: Sequence[RealEngine],
    new_log: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """It has no tokenizer, for the hub is not asked; and it knows how each engine renders."""
    config = {
        "engines": [{"url": engine.url} for engine in engines],
        "models": {MODEL: {"tokenizer": "nobody/has-this"}},
        "remote_render_ms": BUDGET_SECONDS * 1000,
    }
    path = tmp_path_factory.mktemp("gateway") / "config.yaml"
    path.write_text(json.dumps(config))
    with Program(["serve", "--config", str(path)], new_log("gateway-without-tokenizer")) as program:

        def ways() -> object:
            return client.get(f"{program.url}/ready").json["models"][MODEL].get("rendered_by")

        expected = {engines[0].name: "render", engines[1].name: "tokenize"}
        wait_until(lambda: ways() == expected, "it knows how they render", ways, seconds=120)
        yield program.url


def test_a_growing_chat_hits_the_cache_of_the_engine_it_was_at(gateway: str) -> None:
    messages = []
    for turn, text in enumerate(TURNS):
        messages.append(user(text.format("a gateway without a tokenizer")))
        request = chat("rendered elsewhere", messages)
        answer = send(gateway, request, max_tokens=8)
        matched = int(answer.headers["x-inferway-matched-blocks"])

        assert (matched > 0) is (turn > 0)
        assert matched * BLOCK_SIZE >= cached(answer).cached_tokens
        wait_until_believed(gateway, request, engine_of(answer), cached(answer).prompt_blocks)
        messages.append(assistant(answer.json["choices"][0]["message"]["content"]))
