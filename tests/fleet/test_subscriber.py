"""What a subscriber makes of blocks that were moved to slower memory, and what it leaves behind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from inferway.config import IndexSettings
from inferway.fleet.event_source import EventSource
from inferway.fleet.subscriber import Subscription, give_back
from inferway.fleet.zmq_subscriber import ZmqSubscriber
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event import BlockStored
from inferway.kv.index.build import build_index
from inferway.kv.index.memory import MemoryIndex

TOKENS = list(range(8))
KEYS = BlockHasher(2).keys(np.array(TOKENS, dtype=np.uint32), None)


def stored(hashes: list[int], **fields: Any) -> dict[str, Any]:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None}
    return {**event, "token_ids": [], "block_size": 2, **fields}


@pytest.mark.parametrize(
    ("weights", "discount"), [((1.0, 0.8, 0.5), 0.2 + 0.5), ((1.0, 1.0, 1.0), 0.0)]
)
async def test_an_offloaded_block_weighs_what_its_tier_is_worth(
    weights: tuple[float, ...], discount: float
) -> None:
    index = build_index(IndexSettings(tier_weights=weights), MemoryIndex)
    source = EventSource(0, "tcp://127.0.0.1:1", None)
    stream = ZmqSubscriber(Subscription(source, 0, 2, index))
    events = [
        stored([1, 2, 3, 4], token_ids=TOKENS, medium="GPU"),
        stored([3], medium="CPU"),
        stored([4], medium="STORAGE"),
        stored([2], medium="CPU"),  # and still on the GPU
        {"type": "BlockRemoved", "block_hashes": [3, 4], "medium": "GPU"},
    ]

    for step in stream.follower.live(0, msgspec.msgpack.encode([0.0, events, 0])):
        if isinstance(step, list):
            index.apply(step)
    found = await index.match(KEYS)

    assert found.blocks == {0: 4}
    assert found.discount.get(0, 0.0) == pytest.approx(discount)


async def test_what_is_known_of_an_engine_that_left_is_freed_while_others_have_turns() -> None:
    index, numbers = MemoryIndex(), random.Random(1)
    blocks = EngineBlocks(0, 1, holdings=index)
    for start in range(0, 20_000, 500):
        hashes = [numbers.getrandbits(64) for _ in range(500)]
        tokens = list(range(start, start + 500))
        event = BlockStored(block_hashes=hashes, parent_hash=None, token_ids=tokens, block_size=1)
        index.apply(blocks.apply(event))
    assert blocks.num_blocks == 20_000
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await give_back(blocks)
    task.cancel()

    assert turns > 0
    assert blocks.num_blocks == 0
    assert not blocks.sweep(1)
