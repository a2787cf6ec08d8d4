"""The library's front door, against simulated engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import numpy as np
import pytest
from tests.integration.conftest import LONG, simulated

import inferway
from inferway.config import EngineSettings, ServeSettings
from inferway.errors import (
    ConfigError,
    InvalidRequestError,
    NoEndpointError,
    PromptTooLongError,
    RenderError,
    RequestError,
    UnknownModelError,
)
from inferway.fleet.scores import Scores
from inferway.indexer import Indexer
from inferway.model import Reason, Tokenized
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway_sim.config import SimulatorConfig
from inferway_sim.engine import SimulatedEngine
from inferway_sim.prepare import prepare_smollm2
from inferway_sim.rendered import RenderedModel

BLOCK = 16
TOKENS = list(range(1000, 1000 + 5 * BLOCK + 3))
CHAT = [{"role": "user", "content": LONG}]


class Engines:
    """Simulated engines, and what was asked of them."""

    def __init__(self, http: aiohttp.ClientSession, stack: AsyncExitStack, renderer: Renderer):
        self.http, self._stack, self._renderer = http, stack, renderer
        root = str(prepare_smollm2())
        self._key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(root))
        self.running: list[SimulatedEngine] = []

    async def start(self, **fields: object) -> SimulatedEngine:
        config: SimulatorConfig = simulated(**fields)
        model = RenderedModel(self._renderer, self._key, config.max_model_len)
        engine = await self._stack.enter_async_context(SimulatedEngine(config, model))
        self.running.append(engine)
        return engine

    async def indexer(self, **settings: object) -> Indexer:
        engines = [EngineSettings(url=engine.url) for engine in self.running]
        served = ServeSettings(engines=engines, scrape_seconds=0.05, **settings)  # type: ignore[arg-type]
        indexer = Indexer(served, renderer=self._renderer)
        return await self._stack.enter_async_context(indexer)

    async def ask(self, engine: SimulatedEngine, path: str, body: dict[str, object]) -> None:
        body = {"model": "smollm2", "max_tokens": 1, **body}
        async with self.http.post(engine.url + path, json=body) as answer:
            assert answer.status == 200

    async def complete(self, engine: SimulatedEngine, tokens: list[int], **more: object) -> None:
        await self.ask(engine, "/v1/completions", {"prompt": tokens, **more})


@pytest.fixture
async def engines(renderer: Renderer) -> AsyncIterator[Engines]:
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as http:
        yield Engines(http, stack, renderer)


async def until(score: Callable[[], Awaitable[Scores]], engine: SimulatedEngine, blocks: int):  # type: ignore[no-untyped-def]
    """The scores, once so many blocks of `engine` are known."""
    async with asyncio.timeout(10):
        while (scores := await score()).engines[engine.url[7:]].blocks != blocks:
            await asyncio.sleep(0.01)
    return scores


async def test_it_says_who_holds_how_much_of_a_prompt_of_tokens(engines: Engines) -> None:
    first, second = await engines.start(), await engines.start()
    indexer = await engines.indexer()
    await engines.complete(first, TOKENS)
    await engines.complete(second, TOKENS[: 2 * BLOCK])

    await until(lambda: indexer.score_tokens(TOKENS, "smollm2"), second, 2)
    scores = await until(lambda: indexer.score_tokens(TOKENS, "smollm2"), first, 5)

    held = scores.engines[first.url[7:]]
    assert (held.blocks, held.total_blocks, held.tokens, held.score) == (5, 5, 5 * BLOCK, 5.0)
    assert (held.tiers, held.block_size, held.rank) == ((5, 5, 5), BLOCK, None)
    assert held.state in ("exact", "partial")
    assert scores.engines[second.url[7:]].tokens == 2 * BLOCK
    assert scores.best == held
    assert scores.prompt_tokens == len(TOKENS)
    assert scores.reason is Reason.KV_AWARE


async def test_texts_and_chats_are_rendered_as_the_engine_does(engines: Engines) -> None:
    engine = await engines.start()
    indexer = await engines.indexer()
    await engines.ask(engine, "/v1/completions", {"prompt": LONG})
    await engines.ask(engine, "/v1/chat/completions", {"messages": CHAT})

    prompt = await indexer.score_prompt(LONG, "smollm2")
    chat = await indexer.score_chat(CHAT, "smollm2")
    for score, whole in (
        (lambda: indexer.score_prompt(LONG, "smollm2"), prompt),
        (lambda: indexer.score_chat(CHAT, "smollm2"), chat),
    ):
        total = whole.engines[engine.url[7:]].total_blocks
        assert total == whole.prompt_tokens // BLOCK > 1
        await until(score, engine, total)


async def test_a_whole_chat_body_may_be_given(engines: Engines) -> None:
    engine = await engines.start()
    indexer = await engines.indexer()
    body = {"model": "another", "messages": CHAT, "add_generation_prompt": False}
    await engines.ask(engine, "/v1/chat/completions", {**body, "model": "smollm2"})

    plain = await indexer.score_chat(CHAT, "smollm2")
    scores = await indexer.score_chat(body, "smollm2")

    assert scores.model == plain.model == "smollm2"
    assert scores.prompt_tokens < plain.prompt_tokens
    await until(lambda: indexer.score_chat(body, "smollm2"), engine, scores.prompt_tokens // BLOCK)
    salted = await indexer.score_chat({**body, "cache_salt": "a"}, "smollm2", cache_salt="b")
    assert salted.best is None


async def test_a_salt_and_an_adapter_have_blocks_of_their_own(engines: Engines) -> None:
    engine = await engines.start(lora_modules={"tuned": "/adapters/tuned"})
    indexer = await engines.indexer()
    await engines.complete(engine, TOKENS, cache_salt="tenant")
    await engines.complete(engine, TOKENS[: 3 * BLOCK], model="tuned")

    await until(lambda: indexer.score_tokens(TOKENS, "smollm2", cache_salt="tenant"), engine, 5)
    await until(lambda: indexer.score_tokens(TOKENS, "smollm2", lora="tuned"), engine, 3)
    await until(lambda: indexer.score_tokens(TOKENS, "tuned"), engine, 3)
    assert (await indexer.score_tokens(TOKENS, "smollm2")).best is None
    with pytest.raises(UnknownModelError, match="lora: no engine serves 'other'") as unknown:
        await indexer.score_tokens(TOKENS, "smollm2", lora="other")
    assert unknown.value.param == "lora"
    assert (await indexer.score_tokens(TOKENS, "tuned", lora="tuned")).model == "tuned"
    for base in ("alias", "smollm2"):
        with pytest.raises(InvalidRequestError, match=f"'{base}' is not an adapter of 'smollm2'"):
            await indexer.score_tokens(TOKENS, "smollm2", lora=base)


async def test_engines_may_be_chosen_by_name(engines: Engines) -> None:
    first, second = await engines.start(), await engines.start()
    indexer = await engines.indexer()
    name = second.url[7:]

    scores = await indexer.score_tokens(TOKENS, "smollm2", engines=[name])

    assert scores.engines.keys() == {name}
    with pytest.raises(InvalidRequestError, match="engines: no engine is called 'e9'; known: 1"):
        await indexer.score_tokens(TOKENS, "smollm2", engines=[first.url[7:], "e9"])


async def test_engines_that_are_gone_are_not_scored(engines: Engines) -> None:
    first, second = await engines.start(), await engines.start()
    indexer = await engines.indexer()
    await second.stop()

    async with asyncio.timeout(10):
        while len((await indexer.score_tokens(TOKENS, "smollm2")).engines) > 1:
            await asyncio.sleep(0.01)
    with pytest.raises(NoEndpointError, match=f"live: {first.url[7:]}"):
        await indexer.score_tokens(TOKENS, "smollm2", engines=[second.url[7:]])


@pytest.mark.parametrize(
    ("tokens", "error", "param"),
    [
        ([1, -1], "tokens[1]: expected an integer from 0 to 4294967295, got -1", "tokens[1]"),
        ([2**32], "tokens[0]: expected an integer from 0 to 4294967295, got 4294", "tokens[0]"),
        (
            [1, 2, "3"],
            "tokens[2]: expected an integer from 0 to 4294967295, got `str`",
            "tokens[2]",
        ),
        ([True], "tokens[0]: expected an integer from 0 to 4294967295, got `bool`", "tokens[0]"),
        ([1.0], "tokens[0]: expected an integer from 0 to 4294967295, got `float`", "tokens[0]"),
        ([7] * 257, "tokens: 257 are more than the model's context of 256", "tokens"),
    ],
)
async def test_tokens_that_are_none_are_refused_by_their_place(
    engines: Engines, tokens: list[int], error: str, param: str
) -> None:
    await engines.start(max_model_len=256)
    indexer = await engines.indexer()

    with pytest.raises(RequestError) as refused:
        await indexer.score_tokens(tokens, "smollm2")

    assert str(refused.value).startswith(error)
    assert refused.value.param == param
    assert isinstance(refused.value, PromptTooLongError) == (param == "tokens")


async def test_tokens_may_be_an_array(engines: Engines) -> None:
    engine = await engines.start()
    indexer = await engines.indexer()
    await engines.complete(engine, TOKENS)

    for dtype in (np.uint32, np.int64):
        array = np.array(TOKENS, dtype)
        await until(lambda array=array: indexer.score_tokens(array, "smollm2"), engine, 5)  # type: ignore[misc]


async def test_prompts_on_their_way_do_not_count(engines: Engines) -> None:
    await engines.start()
    indexer = await engines.indexer()
    lookup = await indexer.matcher.look_up(
        indexer.fleet.model("smollm2"), Tokenized([np.array(TOKENS, np.uint32)]), None
    )
    [[matched]] = lookup.prompts.values()
    indexer.matcher.overlay.add(0, matched.prompt.block_keys, 0)

    scores = await indexer.score_tokens(TOKENS, "smollm2")

    assert indexer.matcher.overlay.num_blocks(0) > 0
    assert scores.best is None


async def test_no_tokens_are_held_by_nobody(engines: Engines) -> None:
    await engines.start()
    indexer = await engines.indexer()

    scores = await indexer.score_tokens([], "smollm2")

    assert (scores.prompt_tokens, scores.best) == (0, None)


async def test_a_chat_without_messages_is_refused_as_by_the_gateway(engines: Engines) -> None:
    await engines.start()
    indexer = await engines.indexer()

    with pytest.raises(InvalidRequestError, match="must have valid messages field"):
        await indexer.score_chat([], "smollm2")
    with pytest.raises(InvalidRequestError, match="body: it has no form in JSON"):
        await indexer.score_chat([{"role": "user", "content": object()}], "smollm2")
    with pytest.raises(UnknownModelError, match="no engine serves 'gpt'; known: alias, smollm2"):
        await indexer.score_prompt("a", "gpt")


async def test_tokens_need_no_tokenizer(engines: Engines) -> None:
    engine = await engines.start(model="/nowhere")
    indexer = await engines.indexer(remote_render_ms=0)
    await engines.complete(engine, TOKENS)

    await until(lambda: indexer.score_tokens(TOKENS, "smollm2"), engine, 5)
    with pytest.raises(RenderError, match="no tokenizer from '/nowhere'"):
        await indexer.score_prompt(LONG, "smollm2")


async def test_what_was_stored_before_it_came_is_known_once_it_has_caught_up(
    engines: Engines,
) -> None:
    engine = await engines.start()
    await engines.complete(engine, TOKENS)
    indexer = await engines.indexer()

    assert await indexer.caught_up(10)

    scores = await indexer.score_tokens(TOKENS, "smollm2")
    assert scores.engines[engine.url[7:]].blocks == 5


async def test_it_waits_for_nobody_longer_than_it_was_told(engines: Engines) -> None:
    engine = await engines.start()
    elsewhere = EngineSettings(url=engine.url, events="tcp://127.0.0.1:9")

    async with Indexer([elsewhere]) as indexer:
        assert not await indexer.caught_up(0.05)


async def test_engines_are_given_by_url_or_by_settings(engines: Engines) -> None:
    engine = await engines.start()
    by_hand = EngineSettings(url=engine.url, name="second")

    async with inferway.Indexer([f"{engine.url},name=first", by_hand]) as indexer:
        scores = await indexer.score_tokens(TOKENS, model="smollm2")
        await indexer.close()

    assert list(scores.engines) == ["first", "second"]


def test_engines_that_cannot_hold_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no engine"):
        Indexer([])
    with pytest.raises(ConfigError, match="given twice"):
        Indexer(["http://e:1", "http://e:1"])
    with pytest.raises(ConfigError, match="expected http://HOST:PORT"):
        Indexer(["e:1"])
