"""Random histories of an engine's cache, and what an index makes of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import product

import numpy as np
from hypothesis import strategies as st

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event import AllBlocksCleared, BlockRemoved, BlockStored
from inferway.kv.events.records import Record
from inferway.kv.index.memory import MemoryIndex

HOLDER = 3
SIZE = 2
LENGTH = 5  # blocks

# A tree of prompts: each block is one of two, and the first decides on the second tokens, too.
PROMPTS = [list(tokens) for tokens in product((1, 2), repeat=LENGTH)][::3]


def token_ids(prompt: Sequence[int]) -> list[int]:
    return [token for block in prompt for token in (block, 7)]


def keys(prompt: Sequence[int]) -> list[int]:
    return BlockHasher(SIZE).keys(np.array(token_ids(prompt), dtype=np.uint32))


def hashes(prompt: Sequence[int]) -> list[int]:
    """The engine's: of each prefix, as big as real ones."""
    return [zlib.crc32(bytes(prompt[: i + 1])) << 32 | i for i in range(len(prompt))]


class Holder:
    """One engine's blocks, the index they are in, and the records of what happened."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.index = MemoryIndex()
        self.blocks = EngineBlocks(HOLDER, SIZE, holdings=self.index, on_record=self.records.append)

    def apply_record(self, records: Iterable[Record]) -> None:
        for record in records:
            self.index.apply(self.blocks.apply_record(record))

    def seen(self) -> list[object]:
        """All that can be asked."""
        found = [self.index.match_now(keys(prompt)) for prompt in PROMPTS]
        return [
            *[(f.blocks.get(HOLDER, 0), f.discount.get(HOLDER, 0.0)) for f in found],
            self.index.num_blocks(HOLDER),
            self.blocks.num_blocks,
            self.blocks.num_orphans,
            self.blocks.num_awaited,
            self.blocks.block_size_seen,
            self.blocks.copies_count,
        ]


Step = Callable[[Holder], None]

_prompts = st.sampled_from(PROMPTS)
_ends = st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted)
_media = st.sampled_from([None, "GPU", "CPU", "STORAGE", "TAPE"])
# (group, kind, window): one full-attention group, two windows, one that turns out to be none
_groups = st.sampled_from(
    [
        *[(None, None, None)] * 4,
        *[(0, "full_attention", None)] * 2,
        (1, "sliding_window", 3),
        (1, "sliding_window", 5),
        (2, "sliding_window", 9),
    ]
)


def _stored(
    prompt: list[int],
    ends: list[int],
    medium: str | None,
    group: tuple[int | None, str | None, int | None],
    with_tokens: bool,
) -> Step:
    first, last = ends
    own = hashes(prompt)
    event = BlockStored(
        block_hashes=own[first:last],
        parent_hash=own[first - 1] if first else None,
        token_ids=token_ids(prompt[first:last]) if with_tokens else [],
        block_size=SIZE,
        medium=medium,
        group_idx=group[0],
        spec_kind=group[1],
        sliding_window=group[2],
    )
    return lambda holder: holder.index.apply(holder.blocks.apply(event))


def _removed(
    blocks: Sequence[tuple[list[int], int]], medium: str | None, group: int | None
) -> Step:
    gone = [hashes(prompt)[i] for prompt, i in blocks]
    event = BlockRemoved(block_hashes=gone, medium=medium, group_idx=group)
    return lambda holder: holder.index.apply(holder.blocks.apply(event))


def _cleared() -> Step:
    return lambda holder: holder.index.apply(holder.blocks.apply(AllBlocksCleared()))


def _counts_no_copies() -> Step:
    return lambda holder: holder.blocks.count_no_copies()


def adopted(prompt: list[int], length: int) -> Step:
    own, known = hashes(prompt)[:length], keys(prompt)[:length]
    return lambda holder: holder.index.apply(holder.blocks.adopt(own, known, None))


_blocks = st.lists(st.tuples(_prompts, st.integers(0, LENGTH - 1)), min_size=1, max_size=4)
_one_in_8 = st.integers(0, 7).map(lambda n: n == 0)
_events = st.one_of(
    st.builds(_stored, _prompts, _ends, st.none(), st.just((None, None, None)), st.just(True)),
    st.builds(_stored, _prompts, _ends, _media, _groups, st.booleans()),
    st.builds(_removed, _blocks, st.none(), st.none()),
    st.builds(_removed, _blocks, _media, st.sampled_from([None, 0, 1, 2])),
)
_adoptions = st.builds(adopted, _prompts, st.integers(1, LENGTH))
_rare = st.one_of(st.builds(_cleared), st.builds(_counts_no_copies))

#: what comes from the engine only, and all that may happen to a holder
events = st.lists(_events, max_size=30)
histories = st.lists(
    st.one_of(
        _events,
        _events,
        _events,
        _adoptions,
        st.tuples(_one_in_8, _rare, _events).map(lambda rare: rare[1] if rare[0] else rare[2]),
    ),
    max_size=40,
)
