"""A channel on the index's server: what one says all hear, and a server that was lost is found
again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import pytest
from tests.kv.index.redis_server import RedisServer, running_server

from inferway.errors import ConfigError
from inferway.kv.index.redis.channel import RedisChannel

pytestmark = pytest.mark.tools


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running_server() as running:
        yield running


async def until(condition: Callable[[], bool], again: Callable[[], object] = lambda: None) -> None:
    async with asyncio.timeout(20):
        while not condition():
            again()
            await asyncio.sleep(0.01)


def opened(
    stack: AsyncExitStack, server: RedisServer, prefix: str = "p", database: int = 0
) -> tuple[RedisChannel, list[bytes]]:
    heard: list[bytes] = []
    channel = RedisChannel(f"{server.url}?db={database}", prefix, heard.append)
    channel.open()
    stack.push_async_callback(channel.close)
    return channel, heard


async def test_what_one_says_all_hear(server: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        one, heard_by_one = opened(stack, server)
        _, heard_by_other = opened(stack, server)
        _, elsewhere = opened(stack, server, prefix="q")
        _, in_another = opened(stack, server, database=1)

        await until(
            lambda: b"hello\x00" in heard_by_one and b"hello\x00" in heard_by_other,
            lambda: one.say(b"hello\x00"),
        )

        assert elsewhere == in_another == []


async def test_a_server_that_was_lost_is_found_again(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        one, _ = opened(stack, server)
        _, heard = opened(stack, server)
        await until(lambda: bool(heard), lambda: one.say(b"before"))

        server.kill()
        await until(lambda: "peers are not heard over" in caplog.text, lambda: one.say(b"lost"))
        server.start()

        await until(lambda: b"after" in heard, lambda: one.say(b"after"))


def test_a_url_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="not that of a Redis"):
        RedisChannel("http://nowhere", "p", lambda _: None)
