"""A request that ends its engine ends two, however often its client asks again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import openai
import pytest
from aiohttp import web
from tests.integration.conftest import Fleet, StartFleet, answering

from inferway.config import EngineSettings

LETHAL = "the end of you"


@pytest.fixture
def lost() -> list[str]:
    """The engines that a request has ended, in order."""
    return []


@pytest.fixture
async def fleet(start_fleet: StartFleet, lost: list[str]) -> AsyncIterator[Fleet]:
    """Six engines, whose connections break with one prompt."""

    async def engine(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"data": [{"id": "m"}]})
        body = await request.json()
        if body["messages"][0]["content"] == LETHAL:
            assert request.transport is not None
            lost.append(request.host)
            request.transport.abort()
        message = {"role": "assistant", "content": "hello"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"id": "c", "model": "m", "choices": [choice]})

    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(answering(engine)) for _ in range(6)]
        more = [EngineSettings(url=url) for url in urls]
        yield await start_fleet(0, more=more, scoring=False)


async def say(client: openai.AsyncOpenAI, content: str) -> str | None:
    answer = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": content}]
    )
    return answer.choices[0].message.content


async def test_a_client_that_asks_again_and_again_ends_no_third_engine(
    fleet: Fleet, lost: list[str]
) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{fleet.url}/v1", api_key="none", max_retries=5
    ) as client:
        for _ in range(3):
            with pytest.raises(openai.BadRequestError) as refused:
                await say(client, LETHAL)
        other = await say(client, "hi")

    assert refused.value.code == "request_quarantined"
    assert "was at 2 engines when they were lost" in str(refused.value)
    assert len(set(lost)) == len(lost) == 2
    assert other == "hello"
    assert await fleet.metric("inferway_quarantined_requests") == 1


async def test_a_client_that_does_not_is_told_that_two_engines_were_lost(
    fleet: Fleet, lost: list[str]
) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{fleet.url}/v1", api_key="none", max_retries=0
    ) as client:
        with pytest.raises(openai.InternalServerError) as told:
            await say(client, LETHAL)

    assert told.value.code == "engines_lost"
    assert "the second engine that was lost while it had this request" in str(told.value)
    assert len(lost) == 2
