"""Chats that are rendered in another process, because of their size, are rendered the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.errors import RenderError, TemplateError
from inferway.openai_api.requests import ChatRequest
from inferway.prompts import ModelPrompts, RenderChatRequest, Renderer
from inferway.prompts.body_size import MAX_TO_RENDER_HERE
from inferway.prompts.chat.chat_template import ChatInput
from inferway.prompts.chat.large_chats import LargeChats
from inferway.prompts.chat.template_jobs import pack
from inferway_structured.sandbox.process import Limits

MakeModel = Callable[..., Path]

LONG = [{"role": "user", "content": "a few words " * (MAX_TO_RENDER_HERE // 10)}]
MANY = [
    {"role": "assistant" if i % 2 else "user", "content": f"message {i}"}
    for i in range(MAX_TO_RENDER_HERE // 400)
]


@pytest.mark.parametrize("messages", [LONG, MANY], ids=["long", "many"])
async def test_a_large_chat_is_rendered_elsewhere_and_comes_out_the_same(
    own_renderer: Renderer, key: str, messages: list[dict[str, Any]]
) -> None:
    request = RenderChatRequest(key, messages, add_special_tokens=True)

    result = await own_renderer.render_chat_async(request)

    here = own_renderer.render_chat(request)
    assert result.text == here.text
    assert np.array_equal(result.input_ids, here.input_ids)
    assert own_renderer.large_chats.helper.stats.jobs == 1


async def test_a_body_takes_the_same_way(own_renderer: Renderer, key: str) -> None:
    prompts = ModelPrompts(own_renderer, key)

    result = await prompts.render_chat(ChatRequest(model="m", messages=MANY))

    assert result.text == own_renderer.render_chat(RenderChatRequest(key, MANY)).text
    assert own_renderer.large_chats.helper.stats.jobs == 1


async def test_a_chat_of_128_000_tokens_stays_here(own_renderer: Renderer, key: str) -> None:
    turns = [{"role": "user", "content": "word " * 500} for _ in range(256)]

    await own_renderer.render_chat_async(RenderChatRequest(key, turns))

    assert own_renderer.large_chats.helper.stats.jobs == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"chat_template": "{{ raise_exception('No!') }}"}, TemplateError),
        ({"chat_template": "{{ messages.x.y }}"}, TemplateError),
        ({"add_generation_prompt": True, "continue_final_message": True}, TemplateError),
        ({"chat_template": "{% for %}"}, RenderError),
    ],
)
async def test_a_large_chat_fails_with_the_words_of_a_small_one(
    own_renderer: Renderer, key: str, fields: dict[str, Any], error: type[Exception]
) -> None:
    request = RenderChatRequest(key, LONG, **fields)
    with pytest.raises(error) as here:
        own_renderer.render_chat(request)

    with pytest.raises(error) as there:
        await own_renderer.render_chat_async(request)

    assert (str(there.value), vars(there.value)) == (str(here.value), vars(here.value))


@pytest.mark.parametrize(
    "messages",
    [LONG, [*LONG, {"role": "user", "content": 1j}]],
    ids=["a mask is asked for", "it cannot be sent"],
)
async def test_what_the_helper_cannot_do_is_done_here(
    own_renderer: Renderer, key: str, messages: list[dict[str, Any]]
) -> None:
    masked = messages is LONG
    request = RenderChatRequest(
        key,
        messages,
        chat_template="{% for m in messages %}{{ m.content }}{% endfor %}",
        return_assistant_tokens_mask=masked,
    )

    result = await own_renderer.render_chat_async(request)

    assert (result.assistant_mask is not None) == masked
    assert result.text.startswith("a few words")
    assert own_renderer.large_chats.helper.stats.jobs == 0


async def test_where_there_can_be_no_helper_a_thread_does(own_renderer: Renderer, key: str) -> None:
    own_renderer.large_chats.close()

    result = await own_renderer.render_chat_async(RenderChatRequest(key, MANY))

    assert result.text == own_renderer.render_chat(RenderChatRequest(key, MANY)).text


async def count_turns(turns: list[int]) -> None:
    while True:
        turns[0] += 1
        await asyncio.sleep(0)


async def test_a_template_that_is_slow_for_large_chats_leaves_the_event_loop_alone(
    own_renderer: Renderer, key: str
) -> None:
    quadratic = "{% for m in messages %}{{ messages[loop.index:]|length }}{% endfor %}"
    request = RenderChatRequest(key, MANY * 4, chat_template=quadratic)
    turns = [0]
    counting = asyncio.create_task(count_turns(turns))

    await own_renderer.render_chat_async(request)

    counting.cancel()
    assert turns[0] > 100


@pytest.fixture
async def impatient() -> AsyncIterator[LargeChats]:
    large_chats = LargeChats(Limits(cpu_seconds=1, wall_seconds=1))
    yield large_chats
    large_chats.close()


async def test_a_template_that_never_ends_costs_the_prompt_its_tokens_and_nothing_else(
    impatient: LargeChats,
) -> None:
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    chat = ChatInput([{"role": "user", "content": "Hi"}])

    with pytest.raises(RenderError, match=r"a large chat: .* took more than 1 s") as e:
        await impatient.render(pack(endless, chat))

    assert e.value.reason == "helper-busy"
    assert await impatient.render(pack("{{ messages[0].content }}", chat)) == "Hi"
