"""Pictures behind URLs are fetched where the operator allows it, and only from there."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inferway.config import MediaSettings
from inferway.model import FetchedMedia
from inferway.prompts.media.fetch import MOST_PICTURES, MediaFetch, is_public

PICTURE = b"\x89PNG\r\n" + bytes(range(256)) * 8


def answer(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, *headers]
    return b"\r\n".join([*lines, b"connection: close", b"", b""]) + body


def sized(body: bytes, size: int | None = None) -> bytes:
    return answer(body, b"content-length: %d" % (len(body) if size is None else size))


def moved(to: str) -> bytes:
    return answer(b"", b"location: " + to.encode(), b"content-length: 0", status=b"302 Found")


class Pictures:
    """A server that answers each path with raw bytes; a path without any is never answered. `heads`
    are those of the requests, in order."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.heads: list[str] = []
        self.sent = 0
        self.port = 0
        self._ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.heads.append(head)
            given = self.answers.get(head.split()[1])
            if given is None:
                await self._ended.wait()
            else:
                for start in range(0, len(given), 65536):
                    writer.write(given[start : start + 65536])
                    self.sent += len(given[start : start + 65536])
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def url(self, path: str, host: str = "localhost") -> str:
        return f"http://{host}:{self.port}{path}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Pictures]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self._ended.set()
            server.close()
            await server.wait_closed()


def anywhere(address: str) -> bool:
    return bool(address)


@asynccontextmanager
async def world(
    may_reach: Callable[[str], bool] = anywhere, most_bytes: int = 1 << 20, **settings: Any
) -> AsyncIterator[tuple[Pictures, MediaFetch]]:
    """A server, and a gateway's fetches from `localhost`."""
    given = {
        "fetch_domains": ["localhost"],
        "fetch_bytes": 100_000,
        "fetch_seconds": 60.0,  # a busy machine may take its time
        **settings,
    }
    fetch = MediaFetch(MediaSettings(**given), may_reach, most_bytes)
    async with Pictures().open() as server:
        try:
            yield server, fetch
        finally:
            await fetch.close()


def outcomes(fetch: MediaFetch) -> dict[str, float]:
    [family] = fetch.families()
    return {
        sample.labels["outcome"]: sample.value
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def bytes_of(found: FetchedMedia, url: str) -> bytes:
    head, _, data = found.urls[url].partition(",")
    assert head == "data:application/octet-stream;base64"
    return base64.b64decode(data, validate=True)


async def test_picture_becomes_a_data_url_and_its_server_is_told_nothing() -> None:
    async with world() as (server, fetch):
        server.answers["/cat.png?signature=1"] = sized(PICTURE)
        url = server.url("/cat.png?signature=1")

        found = await fetch([url])

        assert bytes_of(found, url) == PICTURE
        assert outcomes(fetch) == {"fetched": 1}
        [head] = server.heads
        names = {line.partition(":")[0].lower() for line in head.split("\r\n")[1:] if line}
        assert names == {"host", "accept", "accept-encoding", "user-agent"}


async def test_pictures_of_a_chat_are_fetched_at_once_and_each_url_once() -> None:
    async with world() as (server, fetch):
        urls = [server.url(f"/{number}") for number in range(4)]
        server.answers |= {f"/{number}": sized(PICTURE + bytes([number])) for number in range(4)}

        found = await fetch([*urls, *urls])

        assert [bytes_of(found, url)[-1] for url in urls] == [0, 1, 2, 3]
        assert len(server.heads) == 4


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        pytest.param(answer(PICTURE), "fetched", id="until-the-connection-ends"),
        pytest.param(
            answer(b"5\r\nhello\r\n0\r\n\r\n", b"transfer-encoding: chunked"),
            "fetched",
            id="in-chunks",
        ),
        pytest.param(sized(b"<html>no picture"), "fetched", id="the-engine-says-it-is-none"),
        pytest.param(sized(b""), "fetched", id="empty"),
        pytest.param(sized(PICTURE, 100_001), "too-large", id="says-it-is-too-large"),
        pytest.param(answer(b"x" * 300_000), "too-large", id="too-large-without-a-length"),
        pytest.param(sized(PICTURE, 50_000), "failed", id="ends-before-its-length"),
        pytest.param(answer(PICTURE, b"content-length: 10, 11"), "failed", id="has-two-lengths"),
        pytest.param(
            answer(PICTURE, b"content-encoding: gzip"), "bad-answer", id="compressed-unasked"
        ),
        pytest.param(
            answer(b"no", b"content-length: 2", status=b"404 Not Found"), "bad-answer", id="404"
        ),
        pytest.param(
            answer(b"", b"content-length: 0", status=b"302 Found"), "bad-answer", id="moved-nowhere"
        ),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", "failed", id="no-http"),
        pytest.param(b"", "failed", id="nothing"),
        pytest.param(moved("/again"), "redirects", id="moved-forever"),
        pytest.param(moved("http://127.0.0.1/x"), "not-allowed", id="moved-to-another-host"),
        pytest.param(moved("file:///etc/passwd"), "not-allowed", id="moved-to-a-file"),
        pytest.param(moved("http://me@localhost/x"), "not-allowed", id="moved-with-a-user"),
        pytest.param(moved("http://[::1"), "failed", id="moved-to-no-url"),
        pytest.param(None, "timeout", id="silent"),
    ],
)
async def test_answer_of_a_server_is_counted_by_what_it_is(
    given: bytes | None, outcome: str
) -> None:
    async with world(fetch_seconds=0.2 if given is None else 20.0) as (server, fetch):
        if given is not None:
            server.answers = {"/it": given, "/again": given}

        found = await fetch([server.url("/it")])

        assert outcomes(fetch) == {outcome: 1}
        assert len(found.urls) == (outcome == "fetched")


async def test_redirect_within_the_allowed_hosts_is_followed() -> None:
    async with world() as (server, fetch):
        server.answers = {"/a": moved("/b"), "/b": moved(server.url("/c")), "/c": sized(PICTURE)}

        found = await fetch([server.url("/a")])

        assert bytes_of(found, server.url("/a")) == PICTURE


async def test_no_more_is_read_of_a_body_than_is_allowed() -> None:
    async with world() as (server, fetch):
        server.answers["/it"] = answer(b"x" * (64 << 20))

        await fetch([server.url("/it")])

        assert server.sent < 16 << 20  # the rest was never taken by the system


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/cat.png",
        "http://localhost.example.org/cat.png",
        "http://localhost./cat.png",
        "http://localhost@example.org/cat.png",
        "http://example.org\\@localhost/cat.png",
        "http://user:password@localhost/cat.png",
        "http://127.0.0.1/cat.png",
        "ftp://localhost/cat.png",
        "gopher://localhost/cat.png",
        "//localhost/cat.png",
        "/cat.png",
        "",
        "http://",
        "http://[::1/cat.png",
        "http://localhost:99999/cat.png",
        "http://localhost:1\r\nx: y/",
        "file:///etc/passwd",
    ],
)
async def test_url_that_is_not_allowed_connects_to_nobody(url: str) -> None:
    async with world() as (server, fetch):
        found = await fetch([url])

        assert found.urls == {}
        assert server.heads == []
        assert set(outcomes(fetch)) <= {"not-allowed", "failed"}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_address_that_is_not_public_is_not_connected_to(host: str) -> None:
    async with world(may_reach=is_public, fetch_domains=[host]) as (server, fetch):
        server.answers["/it"] = sized(PICTURE)

        assert (await fetch([server.url("/it", host)])).urls == {}
        assert outcomes(fetch) == {"address": 1}
        assert server.heads == []


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::5db8:d822", True),
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("100.100.100.200", False),  # Alibaba's metadata
        ("169.254.169.254", False),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::127.0.0.1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b:1::1", False),
        ("2002:7f00:1::", False),
        ("2001:0:1::1", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("fd00:ec2::254", False),
        ("ff02::1", False),
        ("2001:db8::1", False),
    ],
)
def test_only_addresses_of_the_internet_are_public(address: str, *, expected: bool) -> None:
    assert is_public(address) is expected


async def test_pictures_that_come_in_time_are_there_beside_one_that_does_not() -> None:
    async with world(fetch_seconds=0.3) as (server, fetch):
        server.answers["/quick"] = sized(PICTURE)

        found = await fetch([server.url("/silent"), server.url("/quick")])

        assert list(found.urls) == [server.url("/quick")]
        assert outcomes(fetch) == {"timeout": 1, "fetched": 1}


async def test_pictures_of_a_chat_share_its_limit_and_those_that_failed_give_theirs_back() -> None:
    async with world() as (server, fetch):
        server.answers |= {f"/{n}": sized(bytes(40_000)) for n in range(3)}
        server.answers["/broken"] = sized(PICTURE, 90_000)

        assert len((await fetch([server.url("/broken")])).urls) == 0
        found = await fetch([server.url(f"/{n}") for n in range(3)])

        assert len(found.urls) == 2
        assert outcomes(fetch) == {"failed": 1, "fetched": 2, "too-large": 1}


async def test_pictures_of_all_chats_share_a_limit_until_they_are_let_go() -> None:
    async with world(most_bytes=50_000) as (server, fetch):
        server.answers["/it"] = sized(bytes(40_000))

        first = await fetch([server.url("/it")])
        second = await fetch([server.url("/it")])
        assert (len(first.urls), len(second.urls)) == (1, 0)
        del first
        third = await fetch([server.url("/it")])

        assert len(third.urls) == 1
        assert outcomes(fetch) == {"fetched": 2, "busy": 1}


async def test_more_pictures_than_are_fetched_for_one_chat_are_left_to_the_engine() -> None:
    async with world() as (server, fetch):
        server.answers |= {f"/{n}": sized(b"x") for n in range(MOST_PICTURES + 5)}

        found = await fetch([server.url(f"/{n}") for n in range(MOST_PICTURES + 5)])

        assert len(found.urls) == MOST_PICTURES


async def test_chat_that_is_given_up_ends_its_fetches() -> None:
    async with world() as (server, fetch):
        asking = asyncio.create_task(fetch([server.url("/silent")]))
        while not server.heads:
            await asyncio.sleep(0)
        asking.cancel()

        with pytest.raises(asyncio.CancelledError):
            await asking
        assert outcomes(fetch) == {}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory with pictures, beside one with secrets."""
    root = tmp_path / "shared"
    (root / "in").mkdir(parents=True)
    (tmp_path / "shared-not").mkdir()
    for path in ("shared/cat.png", "shared/in/a b.png", "secret.png", "shared-not/cat.png"):
        (tmp_path / path).write_bytes(PICTURE)
    (root / "large.png").write_bytes(bytes(100_001))
    (root / "out.png").symlink_to(tmp_path / "secret.png")
    (root / "near.png").symlink_to("cat.png")
    (root / "away").symlink_to(tmp_path)
    os.mkfifo(root / "pipe.png")
    return root


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("cat.png", "fetched"),
        ("in/a%20b.png", "fetched"),
        ("in/UP/cat.png", "fetched"),
        ("near.png", "fetched"),
        ("cat.png?x=1#y", "fetched"),
        ("UP/secret.png", "not-allowed"),
        ("in/UP/UP/secret.png", "not-allowed"),
        ("%2e%2e/secret.png", "not-allowed"),
        ("..%2fsecret.png", "not-allowed"),
        ("UP/shared-not/cat.png", "not-allowed"),
        ("out.png", "not-allowed"),
        ("away/secret.png", "not-allowed"),
        ("pipe.png", "not-allowed"),
        ("", "not-allowed"),
        ("in", "not-allowed"),
        ("none.png", "failed"),
        ("cat.png%00.jpg", "failed"),
        ("large.png", "too-large"),
    ],
)
async def test_file_is_read_only_below_the_directory(shared: Path, path: str, outcome: str) -> None:
    async with world(local_path=str(shared)) as (_, fetch):
        url = f"file://{shared}/{path.replace('UP', '..')}"

        found = await fetch([url])

        assert outcomes(fetch) == {outcome: 1}
        assert found.urls == {} or bytes_of(found, url) == PICTURE
