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
from inferway.prompts.chat.helper_templates import LargeChats
from inferway.prompts.chat.template_jobs import pack
from inferway_structured.sandbox.process import Limits

MakeModel = Callable[..., Path]

LONG = [{"role": "user", "content": "a few words " * (MAX_TO_RENDER_HERE // 10)}]
MANY = [
    {"role": "assistant" if i % 2 else "user", "content": f"message {i}"}
    for i in range(MAX_TO_RENDER_HERE // 400)
]


Count = Callable[[], int]


@pytest.fixture
def num_elsewhere(renderer: Renderer) -> Count:
    """How many of the test's chats have been rendered in the helper process."""
    stats = renderer.large_chats.helper.stats
    before = stats.jobs
    return lambda: stats.jobs - before


@pytest.mark.parametrize("messages", [LONG, MANY], ids=["long", "many"])
async def test_a_large_chat_is_rendered_elsewhere_and_comes_out_the_same(
    renderer: Renderer, smollm2_key: str, num_elsewhere: Count, messages: list[dict[str, Any]]
) -> None:
    request = RenderChatRequest(smollm2_key, messages, add_special_tokens=True)

    result = await renderer.render_chat_async(request)

    here = renderer.render_chat(request)
    assert result.text == here.text
    assert np.array_equal(result.input_ids, here.input_ids)
    assert num_elsewhere() == 1


async def test_a_body_takes_the_same_way(
    renderer: Renderer, smollm2_key: str, num_elsewhere: Count
) -> None:
    prompts = ModelPrompts(renderer, smollm2_key)

    result = await prompts.render_chat(ChatRequest(model="m", messages=MANY))

    assert result.text == renderer.render_chat(RenderChatRequest(smollm2_key, MANY)).text
    assert num_elsewhere() == 1


async def test_a_chat_of_128_000_tokens_stays_here(
    renderer: Renderer, smollm2_key: str, num_elsewhere: Count
) -> None:
    turns = [{"role": "user", "content": "word " * 500} for _ in range(256)]

    await renderer.render_chat_async(RenderChatRequest(smollm2_key, turns))

    assert num_elsewhere() == 0


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
    renderer: Renderer, smollm2_key: str, fields: dict[str, Any], error: type[Exception]
) -> None:
    request = RenderChatRequest(smollm2_key, LONG, **fields)
    with pytest.raises(error) as here:
        renderer.render_chat(request)

    with pytest.raises(error) as there:
        await renderer.render_chat_async(request)

    assert (str(there.value), vars(there.value)) == (str(here.value), vars(here.value))


@pytest.mark.parametrize(
    "messages",
    [LONG, [*LONG, {"role": "user", "content": 1j}]],
    ids=["a mask is asked for", "it cannot be sent"],
)
async def test_what_the_helper_cannot_do_is_done_here(
    renderer: Renderer, smollm2_key: str, num_elsewhere: Count, messages: list[dict[str, Any]]
) -> None:
    masked = messages is LONG
    request = RenderChatRequest(
        smollm2_key,
        messages,
        chat_template="{% for m in messages %}{{ m.content }}{% endfor %}",
        return_assistant_tokens_mask=masked,
    )

    result = await renderer.render_chat_async(request)

    assert (result.assistant_mask is not None) == masked
    assert result.text.startswith("a few words")
    assert num_elsewhere() == 0


async def test_where_there_can_be_no_helper_a_thread_does(own_renderer: Renderer, key: str) -> None:
    own_renderer.large_chats.close()

    result = await own_renderer.render_chat_async(RenderChatRequest(key, MANY))

    assert result.text == own_renderer.render_chat(RenderChatRequest(key, MANY)).text


async def count_turns(turns: list[int]) -> None:
    while True:
        turns[0] += 1
        await asyncio.sleep(0)


async def test_a_template_that_is_slow_for_large_chats_leaves_the_event_loop_alone(
    renderer: Renderer, smollm2_key: str
) -> None:
    quadratic = "{% for m in messages %}{{ messages[loop.index:]|length }}{% endfor %}"
    request = RenderChatRequest(smollm2_key, MANY * 4, chat_template=quadratic)
    turns = [0]
    counting = asyncio.create_task(count_turns(turns))

    await renderer.render_chat_async(request)

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
