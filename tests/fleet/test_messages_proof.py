"""Whether an engine counts the tokens of messages as we do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from tests.integration.conftest import answering

from inferway.config import EngineSettings
from inferway.errors import RenderError
from inferway.fleet.engine import Engine, ProofState
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.prober import ATTEMPTS, prove_messages
from inferway.model import Reason, Tokenized
from inferway.openai_api.kinds import COUNT_TOKENS
from inferway.openai_api.requests import ChatRequest, CountTokensRequest, PromptBody
from inferway.prompts.chat.messages_input import as_chat
from inferway.prompts.fidelity import BODIES

AGREES, DIFFERS, UNPROVEN = ProofState.AGREES, ProofState.DIFFERS, ProofState.UNPROVEN

Reply = Callable[[dict[str, Any]], web.Response]
Prove = Callable[..., Awaitable[tuple[ProofState, str]]]


class Lengths:
    """A prompt has as many tokens as its chat has messages; `drift` more with each rendering."""

    def __init__(self, drift: int = 0) -> None:
        self.drift = drift
        self.rendered = 0

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        return as_chat(body, merge_inline_system=False, no_thinking_effort="none")

    async def tokenize(self, body: PromptBody) -> Tokenized:
        assert isinstance(body, ChatRequest)
        self.rendered += 1
        return Tokenized([np.zeros(len(body.messages) + self.drift * self.rendered, np.uint32)])


class Unknown(Lengths):
    async def tokenize(self, body: PromptBody) -> Tokenized:  # noqa: ARG002
        raise RenderError("own", reason=Reason.OWN_RENDERER)


def counted(body: dict[str, Any], more: int = 0) -> web.Response:
    """As an engine does that renders like `Lengths`."""
    results = sum(
        block["type"] == "tool_result"
        for message in body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    )
    num = len(body["messages"]) + results + ("system" in body) + more
    return web.json_response({"input_tokens": num})


@pytest.fixture
async def prove() -> AsyncIterator[Prove]:
    async with AsyncExitStack() as stack:

        async def proving(reply: Reply, prompts: Lengths | None = None) -> tuple[ProofState, str]:
            async def engine(request: web.Request) -> web.Response:
                assert request.path == COUNT_TOKENS
                return reply(await request.json())

            url = await stack.enter_async_context(answering(engine))
            client = await stack.enter_async_context(EngineClient())
            asked = Engine(EngineSettings(url=url), ())
            return await prove_messages(client, asked, "m", prompts or Lengths())

        yield proving


async def test_an_engine_that_counts_the_same_agrees(prove: Prove) -> None:
    assert await prove(counted) == (AGREES, "")


async def test_the_first_other_count_is_told(prove: Prove) -> None:
    def reply(body: dict[str, Any]) -> web.Response:
        return counted(body, more=3 if "tools" in body else 0)

    state, why = await prove(reply)

    assert (state, why) == (DIFFERS, "in probe 2 it counts 8 tokens, and we 5")


async def test_a_count_that_the_clock_has_changed_is_asked_for_again(prove: Prove) -> None:
    prompts, asked = Lengths(drift=1), []

    def reply(body: dict[str, Any]) -> web.Response:
        asked.append(body)
        return counted(body, more=len(asked) if len(asked) < ATTEMPTS else prompts.rendered)

    assert (await prove(reply, prompts))[0] is AGREES


@pytest.mark.parametrize("status", [403, 404, 405, 500, 501, 503])
async def test_an_engine_that_does_not_count_proves_nothing(prove: Prove, status: int) -> None:
    assert await prove(lambda _: web.Response(status=status)) == (UNPROVEN, "")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"input_tokens": "x"}'])
async def test_nor_does_one_that_cannot_be_read(prove: Prove, body: bytes) -> None:
    assert await prove(lambda _: web.Response(body=body)) == (UNPROVEN, "")


async def test_what_one_of_us_refuses_is_left_out(prove: Prove) -> None:
    def reply(body: dict[str, Any]) -> web.Response:
        return web.Response(status=400) if "thinking" in body else counted(body)

    assert await prove(reply) == (AGREES, "")
    assert await prove(lambda _: web.Response(status=400)) == (UNPROVEN, "")
    assert await prove(counted, Unknown()) == (UNPROVEN, "")


def test_the_bodies_have_what_versions_of_vllm_read_otherwise() -> None:
    text = str(BODIES)

    for part in ("tool_use", "tool_result", "thinking", "x-anthropic-billing-header", "disabled"):
        assert part in text
    assert any(m["role"] == "system" for body in BODIES for m in body["messages"])
