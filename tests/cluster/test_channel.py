"""Peers over a Redis: what one publishes all hear, and a server that was lost is found again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.cluster.redis_server import RedisServer, running_server, running_with_tls, until

from inferway.cluster.bus.channel import PeerChannel
from inferway.errors import ConfigError

ONE = bytes(7) + b"\1 of the first"
OTHER = bytes(7) + b"\2 of the second"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running_server() as running:
        yield running


async def opened(
    stack: AsyncExitStack, url: str, prefix: str = "p"
) -> tuple[PeerChannel, list[tuple[str, bytes]]]:
    heard: list[tuple[str, bytes]] = []
    channel = PeerChannel(url, prefix)
    await channel.open(lambda address, payload: heard.append((address, payload)), lambda _: None)
    stack.push_async_callback(channel.close)
    return channel, heard


@pytest.mark.tools
async def test_what_one_publishes_all_hear_with_its_sender(server: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        one, heard_by_one = await opened(stack, server.url)
        _, heard_by_other = await opened(stack, server.url)
        _, elsewhere = await opened(stack, server.url, prefix="q")
        _, in_another = await opened(stack, f"{server.url}?db=1")
        message = ("0000000000000001", ONE)

        await until(
            lambda: message in heard_by_one and message in heard_by_other, lambda: one.send(ONE)
        )

        assert elsewhere == in_another == []


@pytest.mark.tools
async def test_a_message_too_short_for_a_sender_is_heard_as_unreadable(server: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        one, heard = await opened(stack, server.url)

        await until(lambda: ("unreadable", b"short") in heard, lambda: one.send(b"short"))


@pytest.mark.tools
async def test_a_server_that_was_lost_is_found_again(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        one, _ = await opened(stack, server.url)
        _, heard = await opened(stack, server.url)
        await until(lambda: bool(heard), lambda: one.send(ONE))

        server.kill()
        await until(lambda: "peers are not heard over" in caplog.text, lambda: one.send(ONE))
        server.start()

        await until(lambda: heard[-1][1] == OTHER, lambda: one.send(OTHER))


@pytest.mark.tools
async def test_peers_hear_each_other_over_tls(tmp_path: Path) -> None:
    with running_with_tls(tmp_path) as url:
        async with AsyncExitStack() as stack:
            one, heard = await opened(stack, url)

            await until(lambda: bool(heard), lambda: one.send(ONE))


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:6379",
        "http://:geheim@h",
        "redis://:gehei/m@h",
        "redis://:geheim@h/0?colour=1",
    ],
)
def test_a_url_that_cannot_be_a_redis_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="not that of a Redis: expected redis://") as raised:
        PeerChannel(url, "p")

    assert "gehei" not in str(raised.value)


def test_the_channel_shows_its_server_without_the_password() -> None:
    assert PeerChannel("redis://me:geheim@h:1/2", "p").endpoint == "redis://h:1/2"


def test_without_redis_py_the_error_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['redis'] = None; sys.modules['redis.asyncio'] = None\n"
        "from inferway.config import PeerSettings, ServeSettings\n"
        "from inferway.errors import ConfigError\n"
        "from inferway.cluster.bus.replicas import transport_of\n"
        "transport_of(ServeSettings(engines=[], peers=PeerSettings(addresses=['a:7400'])))\n"
        "try: transport_of(ServeSettings(engines=[], peers=PeerSettings(redis='redis://r')))\n"
        "except ConfigError as e: print(e)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == (
        "peers: redis needs redis-py, which is not installed: pip install 'inferway[redis]'\n"
    )
