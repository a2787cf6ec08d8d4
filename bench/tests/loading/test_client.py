"""The HTTP client: connections, ends and errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from bench.tests.loading.servers import Recording, chunk, serving, whole

from inferway_bench.loading.client import Client, Target
from inferway_bench.processes import BenchError


async def ask(target: Target, count: int = 1) -> list[tuple[int, str | None, bytes]]:
    """Status, error and body of each answer, one after the other."""
    client = Client(target)
    try:
        answers = [await client.post("/v1/chat/completions", b"{}") for _ in range(count)]
    finally:
        client.close()
    return [(a.status, a.error, b"".join(p.data for p in a.pieces)) for a in answers]


async def test_one_connection_carries_one_request_after_another() -> None:
    peers: list[str] = []

    async def answer(_: str, headers: dict[str, str], __: bytes) -> AsyncIterator[bytes]:
        peers.append(headers["host"])
        yield whole({"n": len(peers)})

    async with serving(answer) as url:
        found = await ask(Target(url), count=3)

    assert [body for _, _, body in found] == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}']


async def test_who_waits_does_not_take_the_connection_of_the_next() -> None:
    """An answer's end frees its connection before the one who asked has seen it."""
    async with serving(Recording()) as url:
        client = Client(Target(url, timeout=30))
        asked = [client.post("/", b"{}") for _ in range(50)]
        answers = await asyncio.gather(*asked)
        answers += await asyncio.gather(*[client.post("/", b"{}") for _ in range(50)])
        client.close()

    assert [a.error for a in answers] == [None] * 100


async def test_headers_are_sent_and_take_the_place_of_our_own() -> None:
    server = Recording()

    async with serving(server) as url:
        await ask(Target(url, {"Authorization": "Bearer k", "User-Agent": "me"}))

    assert server.headers[0]["authorization"] == "Bearer k"
    assert server.headers[0]["user-agent"] == "me"


async def test_a_url_may_end_in_v1_and_may_have_a_path() -> None:
    server = Recording()

    async with serving(server) as url:
        await ask(Target(f"{url}/v1/"))
        await ask(Target(f"{url}/prefix/v1"))

    assert server.paths == ["/v1/chat/completions", "/prefix/v1/chat/completions"]


@pytest.mark.parametrize(
    "url", ["127.0.0.1:80", "ftp://a", "http://", "http://a:b", "http://a?x=1"]
)
def test_what_is_no_url_is_an_error_that_shows_one(url: str) -> None:
    with pytest.raises(BenchError, match=r"expected http://HOST:PORT"):
        Target(url)


async def test_nobody_listening_is_an_answer_with_an_error() -> None:
    async with serving(Recording()) as url:
        pass

    assert [error for _, error, _ in await ask(Target(url))] == ["connect"]


async def test_an_answer_that_does_not_come_in_time_is_a_timeout() -> None:
    async def answer(_: str, __: dict[str, str], ___: bytes) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with serving(answer) as url:
        found = await ask(Target(url, timeout=0.05))

    assert [error for _, error, _ in found] == ["timeout"]


async def test_a_connection_that_closes_within_an_answer_cuts_it() -> None:
    async def answer(_: str, __: dict[str, str], ___: bytes) -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"half")
        yield b""

    async with serving(answer) as url:
        found = await ask(Target(url))

    assert found == [(200, "cut", b"half")]


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def answer(_: str, __: dict[str, str], ___: bytes) -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it"
        yield b""

    async with serving(answer) as url:
        found = await ask(Target(url))

    assert found == [(200, None, b"all of it")]


async def test_what_is_not_http_is_an_error() -> None:
    async def answer(_: str, __: dict[str, str], ___: bytes) -> AsyncIterator[bytes]:
        yield b"SSH-2.0-OpenSSH\r\n"

    async with serving(answer) as url:
        found = await ask(Target(url))

    assert [error for _, error, _ in found] == ["not HTTP"]


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced() -> None:
    asked = 0

    async def answer(_: str, __: dict[str, str], ___: bytes) -> AsyncIterator[bytes]:
        nonlocal asked
        asked += 1
        if asked == 2:  # the second request on the first connection
            yield b""
        yield whole({})

    async with serving(answer) as url:
        found = await ask(Target(url), count=2)

    assert [error for _, error, _ in found] == [None, None]
    assert asked == 3


async def test_https_trusts_who_it_is_told_to_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, file = trustme.CA(), tmp_path / "authorities.pem"
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    authority.cert_pem.write_to_path(str(file))

    async with serving(Recording(), tls=ours) as url:
        refused = await ask(Target(url))
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        trusted = await ask(Target(url))

    assert [error for _, error, _ in trusted] == [None]
    assert [error for _, error, _ in refused] == ["tls"]
