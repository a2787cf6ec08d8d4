"""Prompts that are tokens already -> who holds how much of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferway.blocks.keys import BlockHasher
from inferway.index.memory import MemoryIndex
from inferway.index.protocol import Found, Store
from inferway.index.speculative import SpeculativeOverlay
from inferway.model import BlockKey, Reason, Tokenized
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.steps.match import Matcher

A, B = 0, 1
PROMPTS = [np.arange(first, first + 12, dtype=np.uint32) for first in (100, 200, 300)]


class Asked(MemoryIndex):
    """Notes of how many prompts it is asked at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.at_a_time: list[int] = []

    async def match_all(self, prompts: Sequence[Sequence[BlockKey]]) -> list[Found]:
        self.at_a_time.append(len(prompts))
        return await super().match_all(prompts)


async def test_all_prompts_in_all_block_sizes_are_asked_for_at_once_and_get_what_is_theirs() -> (
    None
):
    index = Asked()
    index.apply([Store(A, BlockHasher(4).keys(PROMPTS[0]))])
    index.apply([Store(A, BlockHasher(4).keys(PROMPTS[2])[:1])])
    index.apply([Store(B, BlockHasher(2).keys(PROMPTS[1])[:5])])
    model = ServedModel("m", NoPrompts(Reason.NO_TOKENIZER, "these are tokens"), (4, 2))
    matcher = Matcher(index, SpeculativeOverlay())

    found = await matcher.look_up(model, Tokenized(PROMPTS), None)

    held = {size: [dict(each.held) for each in items] for size, items in found.prompts.items()}
    assert held == {4: [{A: 3}, {}, {A: 1}], 2: [{}, {B: 5}, {}]}
    assert index.at_a_time == [6]
