"""The library's front door beside real engines, without a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.engines.chats import CHAT, Request, chat, completion, conversations, up_to_user
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine
from tests.engines.gateway import cached, send

from inferway import Indexer, Scores
from inferway.config import EngineSettings

IDS = [3000 + (i * 11) % 40_000 for i in range(5 * BLOCK_SIZE + 7)]
ASKED = {
    request.name: request
    for request in (
        *(chat(c["id"], up_to_user(c["messages"])) for c in conversations("oasst1")[:3]),
        chat("salted", up_to_user(conversations("oasst1")[0]["messages"]), cache_salt="tenant"),
        completion("text", conversations("arena-hard")[0]["messages"][0]["content"]),
        completion("ids", IDS),
    )
}


@pytest.fixture
async def indexer(engines: Sequence[RealEngine]) -> AsyncIterator[Indexer]:
    settings = [EngineSettings(url=engine.url, name=engine.name) for engine in engines]
    async with Indexer(settings) as indexer:
        assert await indexer.caught_up(30)
        yield indexer


async def scores(indexer: Indexer, request: Request) -> Scores:
    body: dict[str, Any] = dict(request.body)
    salt = body.get("cache_salt")
    if request.path == CHAT:
        return await indexer.score_chat(body["messages"], MODEL, cache_salt=salt)
    if isinstance(body["prompt"], str):
        return await indexer.score_prompt(body["prompt"], MODEL, cache_salt=salt)
    return await indexer.score_tokens(body["prompt"], MODEL, cache_salt=salt)


@pytest.mark.parametrize("name", ASKED)
async def test_what_it_says_is_what_the_engine_reuses(
    indexer: Indexer, engines: Sequence[RealEngine], name: str
) -> None:
    request, engine = ASKED[name], engines[0]
    stored = cached(await asyncio.to_thread(send, engine.url, request))
    async with asyncio.timeout(10):
        while True:
            found = (await scores(indexer, request)).engines[engine.name]
            if found.blocks == stored.prompt_blocks:
                break
            await asyncio.sleep(0.02)

    reused = cached(await asyncio.to_thread(send, engine.url, request))

    assert (await scores(indexer, request)).prompt_tokens == reused.prompt_tokens
    assert min(found.blocks, reused.reusable_blocks) * BLOCK_SIZE == reused.cached_tokens
    assert found.total_blocks == reused.prompt_blocks > 0
