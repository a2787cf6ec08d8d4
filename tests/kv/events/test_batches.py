"""A batch of events, however they stand together, comes to the same as its events one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events import event_applier, hash_to_key
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event_applier import EventApplier
from inferway.kv.events.stream import Replay
from inferway.kv.index.memory import MemoryIndex

HOLDER = 2
SIZE = 2
BLOCKS = 8  # of the prompt 0, 1, 2, ... that all events are about
WINDOW = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 5}
FULL = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
FORMS: dict[str, dict[str, Any]] = {
    "plain": FULL,
    "no group": {},
    "nones": FULL | {"extra_keys": None},  # as many as there are blocks
    "in CPU memory": FULL | {"medium": "CPU"},
    "window": WINDOW,
    "remote": FULL | {"locality": "REMOTE"},
    "without tokens": FULL | {"token_ids": []},
    "adapter": FULL | {"lora_name": "alice"},
    "mamba": {"group_idx": 2, "kv_cache_spec_kind": "mamba"},
}
OF_LONG: dict[str, dict[str, Any]] = FORMS | {
    "sparse": WINDOW,  # every second block alone, with the tokens of all
    "parts": {"group_idx": 3, "kv_cache_spec_kind": "mamba", "block_size": 1},
}
PLACES: list[dict[str, Any]] = [
    {"medium": "GPU", "group_idx": 0},
    {"medium": "GPU"},
    {"medium": "CPU", "group_idx": 0},
    {"medium": "GPU", "group_idx": 1},
    {"medium": "GPU", "group_idx": 2},
    {"medium": "GPU", "group_idx": 0, "locality": "REMOTE"},
    {"medium": "GPU", "group_idx": 3},
]
PART = 500  # more than the hash of a block: that of its first part
BAD = {"type": "BlockStored", "block_hashes": "none"}
NEWS = {"type": "BlockPinned"}
CLEARED = {"type": "AllBlocksCleared"}

Said = list[dict[str, Any]]


def stored(first: int, count: int, form: str, lives: tuple[int, int] = (0, 0)) -> Said:
    """Its blocks, and the one before them, have other hashes in other lives of the engine, and
    with an adapter."""
    life, life_before = (2, 2) if form == "adapter" else lives
    last = min(first + count, BLOCKS)
    hashes = [hash_of(number, life) for number in range(first, last)]
    fields = {"medium": "GPU", "lora_id": None, "lora_name": None} | OF_LONG[form]
    if form == "sparse":
        hashes = hashes[1::2] or hashes
    if form == "parts":
        hashes = [each for block_hash in hashes for each in (block_hash + PART, block_hash)]
    if form == "nones":
        fields["extra_keys"] = [None] * len(hashes)
    told = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": hash_of(first - 1, life_before) if first else None,
        "token_ids": list(range(first * SIZE, last * SIZE)),
        "block_size": SIZE,
    }
    return [told | fields]


def removed(numbers: Sequence[int], place: int, life: int) -> Said:
    """As vLLM tells of them: in an event for each."""
    hashes = [hash_of(number, life) for number in numbers]
    if PLACES[place].get("group_idx") == 3:
        hashes = [each for block_hash in hashes for each in (block_hash + PART, block_hash)]
    return [{"type": "BlockRemoved", "block_hashes": [each], **PLACES[place]} for each in hashes]


def hash_of(number: int, life: int) -> int:
    return (1 << 63) + 1000 * life + number


ordinary = st.builds(stored, st.integers(0, BLOCKS - 1), st.integers(1, BLOCKS), st.just("plain"))
lives = st.sampled_from([0, 0, 0, 1])


def of_forms(forms: Iterable[str]) -> st.SearchStrategy[Said]:
    return st.builds(
        stored,
        st.integers(0, BLOCKS - 1),
        st.integers(1, BLOCKS),
        st.sampled_from(list(forms)),
        st.tuples(lives, lives),
    )


strange = of_forms(FORMS)
gone = st.builds(
    removed,
    st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=BLOCKS),
    st.sampled_from([0, 0, 0, *range(len(PLACES) - 1)]),
    lives,
)
END = BLOCKS - 1  # the block that goes first
TWO_HASHES = [
    *removed([END], 0, 0),
    *stored(END, 1, "plain", (1, 0)),
    *stored(END, 1, "plain", (2, 0)),
]
ADOPTING = [*stored(END - 1, 1, "plain"), *stored(END, 1, "plain")]
unusual = st.sampled_from([[BAD], [NEWS], [CLEARED]])
batches = st.lists(
    st.lists(ordinary | ordinary | gone | gone | strange | unusual, max_size=8).map(
        lambda drawn: [event for said in drawn for event in said]
    ),
    min_size=1,
    max_size=4,
)


alone = st.lists(
    of_forms(OF_LONG)
    | st.builds(
        removed,
        st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=BLOCKS),
        st.sampled_from(range(len(PLACES))),
        lives,
    ),
    max_size=12,
)


class Gateway:
    """What is believed of one engine that began with all blocks in GPU memory."""

    def __init__(self, *, shares_index: bool) -> None:
        self.index = MemoryIndex()
        holdings = self.index if shares_index else None
        self.blocks = EngineBlocks(HOLDER, SIZE, holdings=holdings)
        self.follower = EventApplier(self.blocks, holdings=holdings)
        self._seq = 0
        for steps in (self.follower.resume(), self.follower.replay_ended(True)):
            assert all(isinstance(step, Replay) for step in steps)
        self.hear(stored(0, BLOCKS, "plain"))

    def hear(self, events: Said) -> None:
        for step in self.follower.live(self._seq, msgspec.msgpack.encode([1.5, events, 0])):
            assert isinstance(step, list)
            self.index.apply(step)
        self._seq += 1

    def adopt(self) -> None:
        """Find out what orphans stand for, and vouch for."""
        tokens = np.arange(BLOCKS * SIZE, dtype=np.uint32)
        keys = BlockHasher(SIZE).keys(tokens)
        for life in (0, 1):
            hashes = [hash_of(number, life) for number in range(BLOCKS)]
            self.index.apply(self.blocks.adopt(hashes, keys))

    @property
    def picture(self) -> dict[str, object]:
        tokens = np.arange(BLOCKS * SIZE, dtype=np.uint32)
        keys = BlockHasher(SIZE).keys(tokens)
        places = [(tier, group) for tier in (0, 1) for group in range(5)]
        blocks, stats = self.blocks, self.blocks.stats
        return {
            "match": self.index.match_now(keys),
            "held": [self.index.held(HOLDER, keys, *place) for place in places],
            "in the index": self.index.num_blocks(HOLDER),
            "in the bridge": (blocks.num_blocks, blocks.num_orphans, blocks.num_awaited),
            "counted": (stats.stored, stats.removed, stats.orphans, stats.cleared),
            "skipped": set(stats.skipped),  # what removals say together is skipped once
            "events": (self.follower.stats.events, self.follower.stats.skipped),
            "state": self.follower.state,
        }


def small_pieces(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(event_applier, "_PIECE_BLOCKS", 3)
    patch.setattr(hash_to_key, "_SHORT_BLOCKS", 2)


@pytest.mark.parametrize("shares_index", [True, False])
@pytest.mark.parametrize("patched", [lambda _: None, small_pieces], ids=["whole", "pieces"])
@given(batches)
@example([[*removed([END], 0, 0), *stored(0, BLOCKS, "plain"), *removed([END], 0, 0)]])
@example([[*removed([END], 5, 0), *removed([END - 1], 0, 0), *removed([END - 2], 2, 0)]])
@example([[*removed([END], 0, 0), *stored(END, 1, "plain"), *removed([END - 1], 0, 0), CLEARED]])
@example([removed([END], 0, 0), [*removed([END - 1], 0, 0), *stored(END, 1, "plain")]])
@example([[*removed([END], 0, 0), *stored(END, 1, "plain", (1, 0))], removed([END], 0, 1)])
@example([TWO_HASHES, removed([END], 0, 1), removed([END], 0, 2), stored(END, 1, "plain")])
@example([removed([END - 1, END], 0, 0), stored(END, 1, "plain"), ADOPTING, removed([END], 0, 0)])
@example([[*removed([4], 0, 0), *stored(1, 4, "window", (0, 1))]])
def test_a_batch_comes_to_the_same_as_its_events_one_by_one(
    patched: Callable[[pytest.MonkeyPatch], None], shares_index: bool, drawn: list[Said]
) -> None:
    at_once, apart = Gateway(shares_index=shares_index), Gateway(shares_index=True)

    for events in drawn:
        with pytest.MonkeyPatch.context() as patch:
            patched(patch)
            at_once.hear(events)
        for event in events:
            apart.hear([event])
        assert at_once.picture == apart.picture
    at_once.adopt()
    apart.adopt()
    assert at_once.picture == apart.picture


@given(alone)
@example([removed([4], 0, 0), stored(1, 4, "window", (0, 1))])
@example([removed(range(BLOCKS), 0, 0), stored(0, BLOCKS, "sparse")])
@example([removed(range(1, BLOCKS), 0, 0), stored(1, 7, "sparse"), stored(1, 7, "parts", (0, 1))])
def test_a_long_event_in_pieces_comes_to_the_same(drawn: list[Said]) -> None:
    in_pieces, whole = Gateway(shares_index=True), Gateway(shares_index=True)

    for said in drawn:
        for event in said:
            with pytest.MonkeyPatch.context() as patch:
                small_pieces(patch)
                in_pieces.hear([event])
            whole.hear([event])
            assert in_pieces.picture == whole.picture
