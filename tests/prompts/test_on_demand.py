"""Tokenizers where scoring is switched off."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from inferway.errors import RenderError
from inferway.model import Reason, Tokenized
from inferway.openai_api.requests import (
    ChatRequest,
    CompletionRequest,
    CountTokensRequest,
    MessagesRequest,
    PromptBody,
)
from inferway.prompts.model_prompts import OnDemandPrompts
from inferway.prompts.served import NoPrompts, PromptSource

BODY = CompletionRequest(model="m", prompt="hi")


class Seven:
    """Prompts of one token."""

    local = None

    def within(self, contexts: object, rules: object) -> Seven:  # noqa: ARG002
        return self

    async def tokenize(self, body: PromptBody) -> Tokenized:  # noqa: ARG002
        return Tokenized([np.array([7], np.uint32)])

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        return ChatRequest(messages=body.messages)


class Loading:
    """Answers with what it was given, one after the other."""

    def __init__(self, *sources: PromptSource) -> None:
        self.sources = list(sources)

    async def __call__(self) -> PromptSource:
        await asyncio.sleep(0)
        return self.sources.pop(0)


async def test_nothing_is_loaded_before_somebody_asks() -> None:
    loading = Loading(Seven())
    prompts = OnDemandPrompts(loading)

    assert prompts.local is None
    assert len(loading.sources) == 1


async def test_who_asks_together_waits_for_one_loading() -> None:
    prompts = OnDemandPrompts(Loading(Seven()))

    found = await asyncio.gather(*(prompts.tokenize(BODY) for _ in range(3)))

    assert [each.token_ids[0].tolist() for each in found] == [[7]] * 3


async def test_what_could_not_be_had_is_tried_again() -> None:
    nothing = NoPrompts(Reason.NO_TOKENIZER, "the hub is away")
    prompts = OnDemandPrompts(Loading(nothing, Seven()))

    with pytest.raises(RenderError, match="the hub is away"):
        await prompts.tokenize(BODY)

    assert (await prompts.tokenize(BODY)).token_ids[0].tolist() == [7]


async def test_messages_load_it_too() -> None:
    async def load() -> PromptSource:
        return Seven()

    prompts = OnDemandPrompts(load)
    said = [{"role": "user", "content": "hi"}]

    chat = await prompts.chat_of(MessagesRequest(messages=said))

    assert chat.messages == said
