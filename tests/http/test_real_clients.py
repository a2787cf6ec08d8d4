"""The clients that people use, through the gateway to scripted engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import aiohttp
import httpx
import openai
import pytest
from tests.http.gateways import Gateway, gateway
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
HI = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
CHAT_PATH = "/v1/chat/completions"


async def run(*command: str) -> str:
    """What it prints on either of its outputs, when it has done well."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out
    return out.decode()


def data_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("data: ")]


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
async def test_openai_s_blocking_client_gets_a_stream() -> None:
    def ask(port: int) -> list[str | None]:
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key="key", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            return [part.choices[0].delta.content for part in stream]

    async with running(STREAM) as engine, gateway(engine.url) as gw:
        assert await asyncio.to_thread(ask, gw.server.port) == ["hel", "lo"]


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


@in_loop
async def test_aiohttp_gets_a_stream() -> None:
    async with (
        running(STREAM) as engine,
        gateway(engine.url) as gw,
        aiohttp.ClientSession() as session,
        session.post(gw.server.url + CHAT_PATH, json=HI) as got,
    ):
        assert len(data_lines(await got.text())) == 3


@in_loop
async def test_httpx_gets_a_stream() -> None:
    async with (
        running(STREAM) as engine,
        gateway(engine.url) as gw,
        httpx.AsyncClient(base_url=gw.server.url) as client,
        client.stream("POST", CHAT_PATH, json=HI) as got,
    ):
        lines = [line async for line in got.aiter_lines()]

    assert len(data_lines("\n".join(lines))) == 3


@in_loop
async def test_httpx_s_blocking_client_sends_a_chunked_body_and_keeps_its_connection() -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(10):
            yield b"x" * 10_000

    def ask(url: str) -> list[bytes]:
        with httpx.Client(base_url=url) as client:
            return [client.post(CHAT_PATH, content=pieces()).content for _ in range(3)]

    async with running(JSON_ANSWER) as engine, gateway(engine.url) as gw:
        assert await asyncio.to_thread(ask, gw.server.url) == [COMPLETION] * 3
        assert [len(seen.body) for seen in engine.seen] == [100_000] * 3
        assert gw.server.stats.accepted == 1


@pytest.mark.tools
@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
@in_loop
async def test_curl_gets_a_stream(version: str) -> None:
    async with running(STREAM) as engine, gateway(engine.url) as gw:
        body = json.dumps(HI)
        out = await run("curl", "-sSN", "--fail", version, "-d", body, gw.server.url + CHAT_PATH)

    assert len(data_lines(out)) == 3


@pytest.mark.tools
@in_loop
async def test_curl_sends_a_chunked_body_after_100_continue() -> None:
    async with running(JSON_ANSWER) as engine, gateway(engine.url) as gw:
        out = await run(
            *["curl", "-sSv", "--fail", "-H", "transfer-encoding: chunked"],
            *["-H", "expect: 100-continue", "-d", "x" * 100_000, gw.server.url + CHAT_PATH],
        )
        assert "HTTP/1.1 100 Continue" in out
        assert COMPLETION.decode() in out
        assert engine.seen[0].body == b"x" * 100_000


@pytest.mark.tools
@in_loop
async def test_wrk_is_answered_throughout() -> None:
    async with running(JSON_ANSWER) as engine, gateway(engine.url) as gw:
        out = await run(*["wrk", "-t1", "-c8", "-d1", "--timeout", "15"], gw.server.url + CHAT_PATH)
        assert gw.server.statuses.keys() <= {200, 499}  # it leaves when its time is over

    assert "requests in" in out
    assert "Socket errors" not in out
    assert "Non-2xx" not in out


@pytest.mark.tools
@pytest.mark.parametrize("pipelined", ["1", "8"])
@in_loop
async def test_h2load_is_answered_throughout(pipelined: str) -> None:
    """In HTTP/1.1, its requests one behind the other before the first is answered."""
    async with running(JSON_ANSWER) as engine, gateway(engine.url) as gw:
        out = await run(
            *["h2load", "--h1", "-n400", "-c8", "-m", pipelined, gw.server.url + CHAT_PATH]
        )
        assert len(engine.seen) == 400

    assert "400 succeeded, 0 failed, 0 errored, 0 timeout" in out
    assert "status codes: 400 2xx" in out
