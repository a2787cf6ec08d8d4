"""The clients that people use, through the gateway to scripted engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest
from tests.frontends.http.gateways import Gateway, gateway
from tests.upstream.engines import (
    LAST_CHUNK,
    SSE_HEAD,
    answer,
    chunk,
    in_loop,
    raw,
    running,
)


def piece(text: str) -> bytes:
    delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    card = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**card, "choices": [delta]}).encode() + b"\n\n"


COMPLETION = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello"},
                "finish_reason": "stop",
            }
        ],
    }
).encode()
STREAM = raw(SSE_HEAD, chunk(piece("hel")), chunk(piece("lo") + b"data: [DONE]\n\n"), LAST_CHUNK)
BROKEN = raw(SSE_HEAD, chunk(piece("hel")), chunk(b'data: {"cho'), close=True)
JSON_ANSWER = answer(COMPLETION, b"content-type: application/json\r\n")


def client_of(gw: Gateway) -> openai.AsyncOpenAI:
    url = f"http://127.0.0.1:{gw.server.port}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key="key", max_retries=0)


async def streamed(client: openai.AsyncOpenAI, into: list[str]) -> None:
    stream = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    async for part in stream:
        into.append(part.choices[0].delta.content or "")


@in_loop
async def test_openai_gets_an_answer() -> None:
    async with (
        running(JSON_ANSWER) as engine,
        gateway(engine.url) as gw,
        client_of(gw) as client,
    ):
        got = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}]
        )

    assert got.choices[0].message.content == "hello"
    assert engine.seen[0].values(b"authorization") == [b"Bearer key"]


@in_loop
async def test_openai_s_blocking_client_gets_an_answer() -> None:
    def ask(port: int) -> str | None:
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key="key", max_retries=0) as client:
            got = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}]
            )
            return got.choices[0].message.content

    async with running(JSON_ANSWER) as engine, gateway(engine.url) as gw:
        assert await asyncio.to_thread(ask, gw.server.port) == "hello"


@in_loop
async def test_openai_gets_a_stream() -> None:
    parts: list[str] = []
    async with running(STREAM) as engine, gateway(engine.url) as gw, client_of(gw) as client:
        await streamed(client, parts)

    assert parts == ["hel", "lo"]


@in_loop
async def test_openai_raises_for_a_stream_whose_engine_is_lost() -> None:
    parts: list[str] = []
    async with running(BROKEN) as engine, gateway(engine.url) as gw, client_of(gw) as client:
        with pytest.raises(openai.APIError, match="closed the connection in the middle"):
            await streamed(client, parts)

    assert parts == ["hel"]


@in_loop
async def test_openai_raises_for_an_answer_that_breaks_off() -> None:
    cut = raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n",
        COMPLETION[:50],
        close=True,
    )
    async with running(cut) as engine, gateway(engine.url) as gw, client_of(gw) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}]
            )


@in_loop
async def test_aiohttp_sends_a_chunked_body_after_100_continue() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 100_000

    async with (
        running(JSON_ANSWER) as engine,
        gateway(engine.url) as gw,
        aiohttp.ClientSession() as session,
    ):
        url = f"http://127.0.0.1:{gw.server.port}/v1/x"
        async with session.post(url, data=pieces(), expect100=True) as got:
            assert await got.read() == COMPLETION

        assert len(engine.seen[0].body) == 3_000_000
