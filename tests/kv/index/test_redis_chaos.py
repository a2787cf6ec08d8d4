"""Two gateways follow the same engines, a third only reads, and everything goes wrong. Once it is
calm again, what is read is what the engines have."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import pytest
from redis.exceptions import RedisError
from tests.kv.index.conftest import MakeGateway
from tests.kv.index.redis_server import RedisServer

from inferway.errors import IndexAwayError
from inferway.kv.index.protocol import Clear, LastReport, Op, Remove, Store
from inferway.kv.index.redis import RedisIndex, RedisLimits
from inferway.model import BlockKey, HolderId

pytestmark = pytest.mark.tools

NUM_KEYS = 60
SECONDS = 30.0


class World:
    """Two engines whose blocks form one tree, and what each has."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ways: list[list[BlockKey]] = []  # to each block, from its prompt's first one on
        for key in range(NUM_KEYS):
            parent = self.random.randrange(max(-1, key - 4), key) if key else -1
            self.ways.append([*(self.ways[parent] if parent >= 0 else []), key])
        self.held: list[set[BlockKey]] = [set(), set()]

    def step(self) -> Op:
        """Something that an engine does."""
        holder: HolderId = self.random.randrange(2)
        what = self.random.random()
        if what < 0.6:
            way = self.random.choice(self.ways)
            start = self.random.randrange(len(way))
            self.held[holder].update(way[start:])
            return Store(holder, way[start:], parent=way[start - 1] if start else None)
        if what < 0.96:
            keys = self.random.choices(range(NUM_KEYS), k=4)
            self.held[holder].difference_update(keys)
            return Remove(holder, keys)
        self.held[holder].clear()
        return Clear(holder)

    def found(self, way: list[BlockKey]) -> dict[HolderId, int]:
        """By a plain walk."""
        blocks = {
            holder: next((i for i, key in enumerate(way) if key not in held), len(way))
            for holder, held in enumerate(self.held)
        }
        return {holder: n for holder, n in blocks.items() if n}


def troubles(server: RedisServer) -> list[Callable[[], object]]:
    """What may happen to a server and to what it holds of holder "a"."""
    commands: list[tuple[str | int, ...]] = [
        ("FLUSHDB",),
        ("SCRIPT", "FLUSH"),
        ("CLIENT", "KILL", "TYPE", "normal"),
        ("CLIENT", "PAUSE", 20),
        ("DEL", "inferway:1:a:lease"),
        ("DEL", "inferway:1:a:held"),
        ("DEL", "inferway:1:a"),
    ]
    return [partial(server.ask, *command) for command in commands]


async def whatever_comes(work: Awaitable[object]) -> None:
    with suppress(IndexAwayError, RedisError):
        await work


async def is_true(world: World, writers: list[RedisIndex], reader: RedisIndex) -> bool:
    """After a round of everybody's duties."""
    for _ in range(2):  # what the first finds wrong, the second finds mended
        for index in (*writers, reader):
            await index.keep()
            await index.flushed()
    standings = [reader.standing(holder) for holder in range(2)]
    if not all(standing and standing.seq == len(world.ways) for standing in standings):
        return False
    if sum(index.num_leases for index in writers) != 2:
        return False
    return all([(await reader.match(way)).blocks == world.found(way) for way in world.ways])


@pytest.mark.parametrize("seed", range(6))
async def test_after_the_storm_what_is_read_is_the_truth(
    gateway: MakeGateway, server: RedisServer, seed: int
) -> None:
    world = World(seed)
    chance = world.random
    limits = RedisLimits(
        match=2.0, lease=1.0, retry=0.01, rest=0.05, pending=chance.choice([3, 99])
    )
    writers = [await gateway(offers=2, limits=limits) for _ in range(2)]
    reader = await gateway(limits=limits)
    storm = troubles(server)
    for step in range(60):
        op = world.step()
        for index in writers:
            index.apply([op])
        one = chance.choice(writers)
        match chance.randrange(6):
            case 0:
                await asyncio.to_thread(chance.choice(storm))
            case 1:
                one.tell(op.holder, LastReport("stale", fit=False))
            case 2:
                one.tell(op.holder, LastReport("exact", seq=step))
            case 3:
                await whatever_comes(one.keep())
            case 4:
                await whatever_comes(reader.match(world.ways[-1]))
            case _:
                await asyncio.sleep(0)
    for index in writers:
        for holder in range(2):
            index.tell(holder, LastReport("exact", seq=len(world.ways)))

    calm = False
    async with asyncio.timeout(SECONDS):
        while not calm:
            try:
                calm = await is_true(world, writers, reader)
            except (IndexAwayError, RedisError):
                await asyncio.sleep(0.01)  # being mended
    assert calm
