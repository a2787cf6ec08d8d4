"""Anthropic's own client through the gateway: answers, streams, tools, thoughts, images, counts."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anthropic
import pytest
from aiohttp import web
from tests.integration.conftest import LONG, Fleet, StartFleet, answering
from tests.integration.test_request_kinds import all_known

from inferway.config import EngineSettings

GOLDEN = Path(__file__).parents[1] / "golden" / "openai_api" / "vllm_messages.json"
AGENT = json.loads(GOLDEN.read_text())["agent"]  # what vLLM writes of thoughts and calls
READ: Any = {
    "name": "read",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}
HEADER = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;"}
PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()

Seen = list[dict[str, Any]]
StartVllm = Callable[[], Awaitable[tuple[Fleet, Seen]]]


@pytest.fixture
async def start_vllm(start_fleet: StartFleet) -> AsyncIterator[StartVllm]:
    """A gateway in front of one engine that thinks and calls, in vLLM's words; and the bodies that
    it was sent."""
    async with AsyncExitStack() as stack:

        async def start() -> tuple[Fleet, Seen]:
            seen: Seen = []

            async def engine(request: web.Request) -> web.Response:
                if request.path != "/v1/messages":
                    return web.json_response({"data": [{"id": "m"}]})
                seen.append(await request.json())
                if not seen[-1].get("stream"):
                    return web.json_response(AGENT["whole"])
                return web.Response(text=AGENT["stream"], content_type="text/event-stream")

            url = await stack.enter_async_context(answering(engine))
            fleet = await start_fleet(0, more=[EngineSettings(url=url)], scoring=False)
            return fleet, seen

        yield start


def client_of(fleet: Fleet) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=fleet.url, api_key="none", max_retries=0)


def asked(*said: Any, **fields: Any) -> Any:
    messages = [
        {"role": "assistant" if i % 2 else "user", "content": content}
        for i, content in enumerate(said)
    ]
    return {"model": "smollm2", "max_tokens": 16, "messages": messages, **fields}


def prompt_tokens(usage: anthropic.types.Usage) -> int:
    cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    return usage.input_tokens + cached


def engine_of(raw: Any) -> tuple[str, int]:
    return raw.headers["x-inferway-engine"], int(raw.headers["x-inferway-matched-blocks"])


async def test_a_conversation_is_answered_whole_from_the_cache_of_its_engine(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(3)
    said: list[Any] = [LONG]
    seen, cached = [], []
    async with client_of(fleet) as client:
        for turn in range(4):
            system = [{**HEADER, "text": f"{HEADER['text']}{turn}"}, {"type": "text", "text": LONG}]
            raw = await client.messages.with_raw_response.create(**asked(*said, system=system))
            answer = await raw.parse()
            seen.append(engine_of(raw))
            cached.append(answer.usage.cache_read_input_tokens)
            assert "x-inferway-reason" not in raw.headers
            said += [[block.model_dump() for block in answer.content], f"And then? {turn}"]
            await all_known(fleet)

    assert len({engine for engine, _ in seen}) == 1
    assert cached == [16 * matched for _, matched in seen]
    assert cached[0] == 0
    assert all(later > 0 for later in cached[1:])


async def test_a_streamed_answer_is_that_of_the_whole_one(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    async with client_of(fleet) as client:
        whole = await client.messages.create(**asked(LONG))
        async with client.messages.stream(**asked(LONG)) as stream:
            pieces = [piece async for piece in stream.text_stream]
            streamed = await stream.get_final_message()

    assert "".join(pieces) == whole.content[0].text == streamed.content[0].text  # type: ignore[union-attr]
    assert len(pieces) > 1
    assert (streamed.stop_reason, streamed.model) == (whole.stop_reason, "smollm2")
    assert prompt_tokens(streamed.usage) == prompt_tokens(whole.usage)
    assert streamed.usage.output_tokens == whole.usage.output_tokens


async def test_tools_and_thoughts_of_earlier_turns_are_matched(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(3)
    thought = {"type": "thinking", "thinking": "I must look.", "signature": "s"}
    call = {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a.txt"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [text_of("no lines")]}
    steps: list[Any] = [LONG, [thought, text_of("One moment."), call], [result, text_of("Well?")]]
    thinking = {"type": "adaptive"}
    async with client_of(fleet) as client:
        first = await client.messages.with_raw_response.create(
            **asked(LONG, tools=[READ], thinking=thinking)
        )
        await all_known(fleet)
        then = await client.messages.with_raw_response.create(
            **asked(*steps, tools=[READ], tool_choice={"type": "auto"}, thinking=thinking)
        )

    (engine, _), (same, matched) = engine_of(first), engine_of(then)
    usage = (await then.parse()).usage
    assert same == engine
    assert usage.cache_read_input_tokens == 16 * matched > 0


def text_of(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


async def test_thoughts_and_calls_come_as_the_engine_has_written_them(
    start_vllm: StartVllm,
) -> None:
    fleet, seen = await start_vllm()
    body = asked("Read a.txt.", tools=[READ], model="m", thinking={"type": "adaptive"})
    async with client_of(fleet) as client:
        whole = await client.messages.create(**body)
        async with client.messages.stream(**body) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()

    written = AGENT["whole"]["content"]
    assert [block["type"] for block in written] == ["thinking", "text", "tool_use"]
    for answer in (whole, streamed):
        told = [block.to_dict() for block in answer.content]
        assert [
            {name: block[name] for name in fields}
            for block, fields in zip(told, written, strict=True)
        ] == written
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert [each["tools"] for each in seen] == [[READ]] * 2


async def test_an_image_reaches_the_engine_as_it_was_sent(start_vllm: StartVllm) -> None:
    fleet, seen = await start_vllm()
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    content = [text_of("What is this?"), {"type": "image", "source": source}]
    async with client_of(fleet) as client:
        await client.messages.create(**asked(content, model="m"))

    (body,) = seen
    assert body["messages"][0]["content"] == content


async def test_what_comes_before_an_image_is_matched(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}
    async with client_of(fleet) as client:
        first = await client.messages.with_raw_response.create(**asked("hi", system=LONG))
        await all_known(fleet)
        with pytest.raises(anthropic.InternalServerError) as refused:  # it has no eyes
            await client.messages.create(**asked([text_of("And this?"), image], system=LONG))

    assert await fleet.metric("inferway_decisions_total", reason="media-prefix") == 1
    engine, matched = engine_of(refused.value.response)
    assert engine == first.headers["x-inferway-engine"]
    assert matched > 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": LONG, "tools": [READ]},
        {"thinking": {"type": "disabled"}},
        {"system": [HEADER, {"type": "text", "text": "Be brief."}]},
    ],
)
async def test_tokens_are_counted_as_an_answer_counts_them(
    start_fleet: StartFleet, fields: dict[str, Any]
) -> None:
    fleet = await start_fleet(1)
    body = asked("Read a.txt.", "With what?", "With care.", **fields)
    counted = {name: value for name, value in body.items() if name != "max_tokens"}
    async with client_of(fleet) as client:
        count, answer = await asyncio.gather(
            client.messages.count_tokens(**counted), client.messages.create(**body)
        )

    assert count.input_tokens == prompt_tokens(answer.usage)


async def test_errors_are_those_of_the_client(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    async with client_of(fleet) as client:
        with pytest.raises(anthropic.NotFoundError, match="nobody"):
            await client.messages.create(**asked("hi", model="nobody"))
        with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
            await client.messages.create(**asked("word " * 20_000))
