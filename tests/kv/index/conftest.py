"""What the tests of the Redis index share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from tests.kv.index.redis_server import RedisServer, running_server

from inferway.kv.index.protocol import LastReport
from inferway.kv.index.redis import RedisIndex, RedisLimits

MakeGateway = Callable[..., Awaitable[RedisIndex]]

# Holders "a", "b", "c".
A, B, C = 0, 1, 2

SECONDS = 30.0

# Leases that last and matches that may take their time, whatever else the machine does.
PATIENT = RedisLimits(match=2.0, lease=30.0, retry=0.02)
QUICK = RedisLimits(match=2.0, lease=0.5, retry=0.02)


async def until(condition: Callable[[], object], what: str) -> None:
    """TimeoutError says what never came true."""
    try:
        async with asyncio.timeout(SECONDS):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise TimeoutError(f"not within {SECONDS} s: {what}") from None


async def blocks(index: RedisIndex, *keys: int) -> dict[int, int]:
    return dict((await index.match(keys)).blocks)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running_server() as running:
        yield running


@pytest.fixture
async def gateway(server: RedisServer) -> AsyncIterator[MakeGateway]:
    """Makes indexes on `server`, each as one gateway would; closes them. The holders `offers`
    are introduced as "a", "b", …, and offered to be written."""
    made: list[RedisIndex] = []

    async def make(
        offers: int = 0,
        url: str = server.url,
        limits: RedisLimits = PATIENT,
        prefix: str = "inferway",
        gateway: str | None = None,
    ) -> RedisIndex:
        index = RedisIndex(url, prefix=prefix, gateway=gateway, limits=limits)
        made.append(index)
        for holder, name in enumerate("abc"):
            index.introduce(holder, name)
            if holder < offers:
                index.tell(holder, LastReport("exact"))
        await index.start()
        return index

    yield make
    for index in made:
        await index.close()
