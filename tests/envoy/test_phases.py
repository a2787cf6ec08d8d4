"""Who goes in which phase, HTTP/2, trailers and large bodies: through a real Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from aiohttp import web
from tests.envoy.conftest import COMPLETION, Proxied, StartProxied
from tests.envoy.proxy import Config, cluster, manager
from tests.envoy.test_requests import freed, post, prompt_of
from tests.envoy.upstreams import digest

pytestmark = pytest.mark.envoy

_Parsed = TypeVar("_Parsed")
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


async def never(_: web.Request, __: bytes) -> web.StreamResponse:
    """An engine that does not answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def dies(request: web.Request, _: bytes) -> web.StreamResponse:
    """An engine that is gone in the middle of its answer."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"model":"m","n":0}\n\n')
    assert request.transport is not None
    request.transport.abort()
    return response


class SlowParse:
    """Parses bodies in its own time, as a thread does."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.given_up = asyncio.Event()

    async def __call__(self, parse: Callable[[bytes], _Parsed], body: bytes) -> _Parsed:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        return parse(body)


async def asks(proxied: Proxied) -> asyncio.StreamWriter:
    """A client's connection, with a whole request sent on it."""
    host, port = proxied.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b"
        % (len(COMPLETION), COMPLETION)
    )
    await writer.drain()
    return writer


async def test_a_client_that_goes_while_we_decide_leaves_nothing(start: StartProxied) -> None:
    proxied = await start()
    slow = SlowParse()
    proxied.stream.director.off_loop, proxied.stream.director.off_loop_bytes = slow, 0

    client = await asks(proxied)
    await slow.begun.wait()
    client.close()
    await slow.given_up.wait()
    await freed(proxied)

    assert proxied.outcomes == {"client_gone": 1}
    assert proxied.booked == []
    assert proxied.upstreams[0].came == []


async def test_a_client_that_goes_before_the_answer_frees_its_slot(start: StartProxied) -> None:
    proxied = await start(never)
    client = await asks(proxied)
    while not proxied.upstreams[0].came:
        await asyncio.sleep(0)
    assert proxied.booked == [proxied.upstreams[0].address]

    client.close()
    await freed(proxied)

    assert proxied.outcomes == {"client_gone": 1}
    await proxied.upstreams[0].cancelled.wait()


async def test_an_engine_that_dies_in_the_middle_of_an_answer_frees_its_slot(
    start: StartProxied,
) -> None:
    proxied = await start(dies)
    client = await asks(proxied)

    await freed(proxied)
    client.close()

    assert sum(proxied.outcomes.values()) == 1
    assert "ok" not in proxied.outcomes


async def test_a_client_may_speak_http_2(start: StartProxied, tmp_path: Path) -> None:
    proxied = await start()
    body = prompt_of(300_000)
    (tmp_path / "body").write_bytes(body)

    process = await asyncio.create_subprocess_exec(
        *("curl", "--silent", "--show-error", "--http2-prior-knowledge", "--write-out"),
        *("\n%{http_version} %{http_code}", "--data-binary", f"@{tmp_path / 'body'}"),
        proxied.url + "/v1/completions",
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()

    answer, _, version = told.rpartition(b"\n")
    assert version == b"2 200"
    assert msgspec.json.decode(answer)["sha256"] == sha256(body).hexdigest()


async def test_large_bodies_end_once(start: StartProxied) -> None:
    """Envoy 1.35 to 1.37 were seen to send the end of such bodies twice."""
    proxied = await start(digest, digest)

    for number in range(48):
        body = prompt_of(1_200_000 + number * 31_250)
        status, _, answer = await post(proxied, body)
        assert status == 200
        assert msgspec.json.decode(answer)["sha256"] == sha256(body).hexdigest()

    await freed(proxied)
    assert proxied.outcomes == {"ok": 48}


@asynccontextmanager
async def with_trailers() -> AsyncIterator[str]:
    """An engine whose answers have trailers, as gRPC's have."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n0\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
            b"trailer: x-t\r\nconnection: close\r\n\r\n2\r\n{}\r\n0\r\nx-t: 1\r\n\r\n"
        )
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_trailers_of_an_answer_pass(start: StartProxied) -> None:
    def trailers(config: Config) -> None:
        manager(config)["http_protocol_options"] = {"enable_trailers": True}
        cluster(config, "engines")["typed_extension_protocol_options"] = {
            _OPTIONS: {
                "@type": f"type.googleapis.com/{_OPTIONS}",
                "explicit_http_config": {"http_protocol_options": {"enable_trailers": True}},
            }
        }

    async with with_trailers() as address:
        proxied = await start(change=trailers, pods={address: {"q": 0}})
        host, port = proxied.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: h\r\nte: trailers\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(COMPLETION), COMPLETION)
        )
        answer = await reader.read()
        writer.close()
        await freed(proxied)

    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"0\r\nx-t: 1\r\n\r\n")
    assert proxied.outcomes == {"ok": 1}


async def test_a_body_that_is_still_to_come_is_waited_for(start: StartProxied) -> None:
    proxied = await start()
    host, port = proxied.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: h\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(COMPLETION), COMPLETION[:5])
    )
    await writer.drain()
    status, _, _ = await post(proxied)  # others are not held up by it
    writer.write(COMPLETION[5:])

    answer = await reader.read()
    writer.close()

    assert status == 200
    assert answer.startswith(b"HTTP/1.1 200")
    assert [came.body for came in proxied.upstreams[0].came] == [COMPLETION, COMPLETION]
