"""What a subscriber leaves behind."""

from __future__ import annotations

import asyncio
import random

from inferway.fleet.subscriber import give_back
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event import BlockStored
from inferway.kv.index.memory import MemoryIndex


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
