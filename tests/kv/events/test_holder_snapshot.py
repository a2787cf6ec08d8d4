"""What an engine has can be written down without tokens, and another gateway goes on from there."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kv.snapshots import POSITION, encoded, restore, result, saved

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event import AllBlocksCleared, BlockRemoved, BlockStored, Event
from inferway.kv.events.holder_snapshot import SavedHolder
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Op

HOLDER = 1
SIZE = 2
LENGTH = 4  # blocks of a prompt
PROMPTS = [
    [first, 7, 1, 1, second, 2, 3, third]
    for first in (1, 2)
    for second, third in ((1, 1), (1, 2), (2, 1))
]


@dataclass(frozen=True)
class Adopt:
    """A prompt is routed that the engine hashes like this."""

    hashes: Sequence[int]
    keys: Sequence[int]


@dataclass(frozen=True)
class CountNoCopies:
    """From here on."""


Step = Event | Adopt | CountNoCopies


def hashes_of(prompt: Sequence[int]) -> list[int]:
    """Those that the engine has for a prompt's blocks, as good as any."""
    ends = range(SIZE, len(prompt) + 1, SIZE)
    digests = [hashlib.sha256(repr(prompt[:end]).encode()).digest() for end in ends]
    return [int.from_bytes(digest[:8], "big") for digest in digests]


def keys_of(prompt: Sequence[int]) -> list[int]:
    return BlockHasher(SIZE).keys(np.array(prompt, dtype=np.uint32))


@st.composite
def stores(draw: st.DrawFn) -> BlockStored:
    """Any stretch of a prompt, in any tier, with tokens or without, of one of three groups."""
    prompt = draw(st.sampled_from(PROMPTS))
    start = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
    end = draw(st.integers(start + 1, LENGTH))
    hashes = hashes_of(prompt)
    group = draw(st.sampled_from([None, None, None, 0, 1, 2]))
    kind = draw(st.sampled_from([None, "full_attention"]))
    if group:
        kind = "sliding_window" if group == 1 else "full_attention"
    with_tokens = draw(st.integers(0, 4)) > 0
    return BlockStored(
        block_hashes=hashes[start:end],
        parent_hash=hashes[start - 1] if start else None,
        token_ids=prompt[start * SIZE : end * SIZE] if with_tokens else [],
        block_size=SIZE,
        medium=draw(st.sampled_from([None, None, "GPU", "CPU", "DISK", "TAPE"])),
        group_idx=group,
        spec_kind=kind,
        sliding_window=draw(st.sampled_from([3, 5])) if group == 1 else None,
    )


@st.composite
def removals(draw: st.DrawFn) -> BlockRemoved:
    hashes = hashes_of(draw(st.sampled_from(PROMPTS)))
    return BlockRemoved(
        block_hashes=draw(st.lists(st.sampled_from(hashes), min_size=1, max_size=4)),
        medium=draw(st.sampled_from([None, None, "GPU", "CPU", "DISK", "TAPE"])),
        group_idx=draw(st.sampled_from([None, 0, 1, 2])),
    )


@st.composite
def events(draw: st.DrawFn) -> Event:
    kind = draw(st.integers(0, 31))
    if kind == 31:
        return AllBlocksCleared()
    if kind < 20:
        return draw(stores())
    return draw(removals())


@st.composite
def any_step(draw: st.DrawFn) -> Step:
    kind = draw(st.integers(0, 15))
    if kind == 15:
        return CountNoCopies()
    if kind >= 12:
        prompt = draw(st.sampled_from(PROMPTS))
        return Adopt(hashes_of(prompt), keys_of(prompt))
    return draw(events())


STEPS = st.lists(any_step(), min_size=15, max_size=50)


class Picture:
    """An engine's blocks and an index."""

    def __init__(self) -> None:
        self.index = MemoryIndex()
        self.engine = EngineBlocks(HOLDER, SIZE, holdings=self.index)

    @classmethod
    def after_restart(cls, of: Picture) -> Picture:
        new = cls()
        restore(new.engine, new.index, saved(of.engine, of.index))
        return new

    def do(self, step: Step) -> list[Op]:
        if isinstance(step, CountNoCopies):
            self.engine.count_no_copies()
            return []
        if isinstance(step, Adopt):
            ops = self.engine.adopt(step.hashes, step.keys)
        else:
            ops = self.engine.apply(step)
        self.index.apply(ops)
        return ops

    def look(self) -> object:
        engine = self.engine
        found = [asyncio.run(self.index.match(keys_of(prompt))) for prompt in PROMPTS]
        counts = (engine.num_blocks, engine.num_orphans, engine.num_awaited)
        kind = (engine.block_size_seen, engine.copies_count, self.index.num_blocks(HOLDER))
        return found, counts, kind


def needs_no_memory(event: Event) -> bool:
    """What was removed a moment ago is in no record; only copies in other tiers ask for it."""
    if not isinstance(event, BlockStored) or event.extra_keys is not None:
        return True
    return event.medium in (None, "GPU")


@settings(max_examples=100)
@given(STEPS, st.lists(events().filter(needs_no_memory), max_size=15))
def test_a_restored_engine_is_equal_and_does_the_same_afterwards(
    steps: list[Step], later: list[Event]
) -> None:
    first = Picture()
    for step in steps:
        first.do(step)

    second = Picture.after_restart(first)

    assert second.look() == first.look()
    for event in later:
        assert second.do(event) == first.do(event)
    assert second.look() == first.look()
    assert Picture.after_restart(second).look() == first.look()


def test_a_snapshot_has_no_tokens() -> None:
    prompt = [123456, 123457, 123458, 123459]
    picture = Picture()
    event = BlockStored(
        block_hashes=hashes_of(prompt), parent_hash=None, token_ids=prompt, block_size=SIZE
    )
    picture.do(event)

    written = encoded(result(picture.engine.take(POSITION)), picture.index)

    assert not any(struct.pack("<Q", token)[:3] in written for token in prompt)
    assert not any(struct.pack(">Q", token)[5:] in written for token in prompt)
    assert struct.pack("<Q", keys_of(prompt)[0]) in written


def test_an_orphan_after_a_restart_vouches_for_itself_alone() -> None:
    hashes, keys = hashes_of(PROMPTS[0]), keys_of(PROMPTS[0])
    first = Picture()
    orphan = BlockStored(
        block_hashes=hashes[2:3],
        parent_hash=hashes[1],
        token_ids=PROMPTS[0][2 * SIZE : 3 * SIZE],
        block_size=SIZE,
    )
    first.do(orphan)
    second = Picture.after_restart(first)

    second.do(Adopt(hashes, keys))

    assert (second.engine.num_blocks, second.engine.num_orphans) == (1, 0)


def test_a_block_that_went_while_the_snapshot_was_taken_is_left_out() -> None:
    """The engine's replay tells of its removal, and of the block if it came back."""
    hashes = hashes_of(PROMPTS[0])
    first, second = Picture(), Picture()
    first.do(stored(PROMPTS[0]))
    snapshot = result(first.engine.take(POSITION))
    first.do(BlockRemoved(block_hashes=hashes[2:]))

    restore(second.engine, second.index, SavedHolder(encoded(snapshot, first.index)))

    assert second.look() == first.look()


def test_long_chains_and_wide_families_are_restored() -> None:
    first, common = Picture(), list(range(2 * 600))
    first.do(stored(common))
    for i in range(40):
        first.do(stored([*common[: SIZE * 300], 10_000 + i, 7, i, i], start=300))

    second = Picture.after_restart(first)

    assert second.index.num_blocks(HOLDER) == first.index.num_blocks(HOLDER) == 600 + 2 * 40
    for i in range(40):
        keys = keys_of([*common[: SIZE * 300], 10_000 + i, 7, i, i])
        assert second.index.match_now(keys).blocks == {HOLDER: 302}


def stored(prompt: Sequence[int], start: int = 0) -> BlockStored:
    hashes = hashes_of(prompt)
    return BlockStored(
        block_hashes=hashes[start:],
        parent_hash=hashes[start - 1] if start else None,
        token_ids=list(prompt[start * SIZE :]),
        block_size=SIZE,
    )


def test_an_index_without_the_blocks_leaves_nothing() -> None:
    first, second = Picture(), Picture()
    first.do(stored(PROMPTS[0]))

    restore(
        second.engine,
        second.index,
        SavedHolder(encoded(result(first.engine.take(POSITION)), MemoryIndex())),
    )

    assert second.engine.num_blocks == 0
