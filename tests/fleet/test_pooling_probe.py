"""What an engine of a pooling model tells of its task, and of how it joins texts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from tests.integration.conftest import answering

from inferway.config import EngineSettings
from inferway.errors import RenderError, UpstreamError
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.pooling_probe import BODIES, pooling_facts
from inferway.model import Reason, TokenIds
from inferway.prompts.scoring_input import NO_POOLING, Join, PoolingFacts, Scored

Ask = Callable[..., Awaitable[PoolingFacts]]


class Lengths:
    """A prompt of each join has so many tokens; there are none of the others."""

    def __init__(self, lengths: dict[Join, int]) -> None:
        self._lengths = lengths

    async def tokenize_scores(self, scored: Scored, join: Join) -> list[TokenIds]:
        if join not in self._lengths:
            raise RenderError("no template", reason=Reason.NO_TEMPLATE)
        return [np.zeros(self._lengths[join], np.uint32) for _ in scored.second]


ALL = {Join.APART: 2, Join.TEMPLATE: 3, Join.PAIR: 4, Join.JOINED: 5}


def used(body: dict[str, Any], each: int) -> web.Response:
    """As an engine answers whose prompts have so many tokens."""
    return web.json_response({"usage": {"prompt_tokens": each * len(body["text_2"])}})


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    async with AsyncExitStack() as stack:

        async def asking(
            task: str, score: Callable[[dict[str, Any]], web.Response], lengths: dict[Join, int]
        ) -> PoolingFacts:
            async def answer(request: web.Request) -> web.Response:
                body = await request.json()
                if request.path == "/score":
                    return score(body)
                assert request.path == "/pooling"
                return web.Response(status=200 if body["task"] == task else 400)

            url = await stack.enter_async_context(answering(answer))
            client = await stack.enter_async_context(EngineClient())
            engine = Engine(EngineSettings(url=url), ())
            return await pooling_facts(client, engine, "m", Lengths(lengths))

        yield asking


@pytest.mark.parametrize(
    ("task", "join"),
    [
        *(("embed", Join.APART), ("classify", Join.TEMPLATE)),
        *(("classify", Join.PAIR), ("classify", Join.JOINED)),
    ],
)
async def test_the_join_is_the_one_with_as_many_tokens(ask: Ask, task: str, join: Join) -> None:
    found = await ask(task, lambda body: used(body, ALL[join]), ALL)

    assert found == PoolingFacts(task, join)


async def test_a_join_that_is_right_once_is_not_the_engines(ask: Ask) -> None:
    def score(body: dict[str, Any]) -> web.Response:
        return used(body, 4 if body["text_1"] == BODIES[0]["text_1"] else 5)

    assert await ask("classify", score, ALL) == PoolingFacts("classify")


async def test_of_two_joins_with_as_many_tokens_none_is_known(ask: Ask) -> None:
    lengths = {Join.PAIR: 4, Join.JOINED: 4}

    found = await ask("classify", lambda body: used(body, 4), lengths)

    assert found == PoolingFacts("classify")


@pytest.mark.parametrize("status", [400, 404])
async def test_an_engine_that_scores_nothing_has_no_join(ask: Ask, status: int) -> None:
    found = await ask("classify", lambda _: web.Response(status=status), ALL)

    assert found == PoolingFacts("classify")


async def test_an_engine_with_another_task_has_no_facts(ask: Ask) -> None:
    assert await ask("token_embed", lambda body: used(body, 2), ALL) == NO_POOLING


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_fault_that_may_pass_is_no_answer(ask: Ask, status: int) -> None:
    with pytest.raises(UpstreamError):
        await ask("embed", lambda _: web.Response(status=status), ALL)
