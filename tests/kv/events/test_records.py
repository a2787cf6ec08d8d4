"""What an engine's events changed can be written down without tokens, and done again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event import AllBlocksCleared, BlockRemoved, BlockStored, Event
from inferway.kv.events.records import Record, StoredRecord, WaitingRecord
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

    def __init__(self, *, asks: bool, records: list[Record] | None = None) -> None:
        self.index = MemoryIndex()
        self.engine = EngineBlocks(
            HOLDER,
            SIZE,
            holdings=self.index if asks else None,
            on_record=records.append if records is not None else None,
        )

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

    def apply_record(self, records: Sequence[Record]) -> None:
        """As they come back from a file."""
        written = msgspec.msgpack.encode(records)
        for record in msgspec.msgpack.decode(written, type=list[Record]):
            self.index.apply(self.engine.apply_record(record))

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


@settings(max_examples=60)
@given(STEPS, st.lists(events().filter(needs_no_memory), max_size=15), st.booleans())
def test_redone_records_make_an_equal_engine_and_index(
    steps: list[Step], later: list[Event], asks: bool
) -> None:
    records: list[Record] = []
    first, second = Picture(asks=asks, records=records), Picture(asks=asks)
    for step in steps:
        first.do(step)

    second.apply_record(records)

    assert second.look() == first.look()
    for event in later:
        assert second.do(event) == first.do(event)
    assert second.look() == first.look()


@settings(max_examples=30)
@given(STEPS, st.booleans())
def test_who_writes_down_does_the_same_as_who_does_not(steps: list[Step], asks: bool) -> None:
    records: list[Record] = []
    writing, silent = Picture(asks=asks, records=records), Picture(asks=asks)

    assert [writing.do(step) for step in steps] == [silent.do(step) for step in steps]


def test_records_have_no_tokens() -> None:
    records: list[Record] = []
    prompt = [123456, 123457, 123458, 123459]
    hashes = hashes_of(prompt)
    event = BlockStored(block_hashes=hashes, parent_hash=None, token_ids=prompt, block_size=SIZE)

    EngineBlocks(HOLDER, SIZE, on_record=records.append).apply(event)

    assert records[-1] == StoredRecord(hashes, keys_of(prompt))
    assert not {str(token) for token in prompt} & set(repr(records).replace(",", " ").split())


def test_doing_again_is_not_written_down_again() -> None:
    records: list[Record] = []
    engine = EngineBlocks(HOLDER, SIZE, on_record=records.append)

    engine.apply_record(StoredRecord([1, 2], [3, 4]))

    assert (engine.num_blocks, records) == (2, [])


def test_an_orphan_after_a_restart_vouches_for_itself_alone() -> None:
    """What was removed since may have been left out of the records."""
    hashes, keys = hashes_of(PROMPTS[0]), keys_of(PROMPTS[0])
    engine = EngineBlocks(HOLDER, SIZE)
    engine.apply_record(WaitingRecord(hashes[2:3], 0))

    engine.adopt(hashes, keys)

    assert (engine.num_blocks, engine.num_orphans) == (1, 0)


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(TypeError, match="is no record"):
        EngineBlocks(HOLDER, SIZE).apply_record("stored")  # type: ignore[arg-type]
