"""What comes in as bytes, and what is believed after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kv.snapshots import encoded

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.adapters.sglang import open_batch
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.event import SMALL_BYTES, Batch
from inferway.kv.events.event_applier import EventApplier, Steps
from inferway.kv.events.holder_snapshot import HolderSnapshot, Position, SavedHolder
from inferway.kv.events.stream import MAX_IN_VAIN, Replay, StreamState, digest_of
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Copy, Remove, Store

HOLDER = 2
SIZE = 2
EXACT, PARTIAL, BLIND = StreamState.EXACT, StreamState.PARTIAL, StreamState.BLIND
GARBAGE = b"\xc1garbage"
CLEARED = {"type": "AllBlocksCleared"}
BAD_REMOVAL = {"type": "BlockRemoved", "block_hashes": "none"}
BAD_STORE = {"type": "BlockStored", "block_hashes": "none"}
NEWS = {"type": "BlockPinned"}
NAMELESS = {"blocks": 3}


def stored(first: int, last: int, **fields: Any) -> dict[str, Any]:
    """Blocks first..last-1 of the prompt 0, 1, 2, ...; a block's hash is 1000 + its number."""
    return {
        "type": "BlockStored",
        "block_hashes": list(range(1000 + first, 1000 + last)),
        "parent_block_hash": 999 + first if first else None,
        "token_ids": list(range(first * SIZE, last * SIZE)),
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **fields,
    }


def removed(number: int, medium: str = "GPU") -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [1000 + number], "medium": medium}


def batch(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


@dataclass
class Gateway:
    """A follower, its index, and what it was told to do and told others."""

    can_replay: bool = True
    max_blocks: int | None = None
    wanted: list[Replay] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    skips: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.index = MemoryIndex(max_blocks=self.max_blocks)
        self.blocks = EngineBlocks(HOLDER, SIZE, holdings=self.index)
        self.follower = EventApplier(
            self.blocks,
            can_replay=self.can_replay,
            holdings=self.index,
            on_batch=self.batches.append,
            on_skip=lambda *args: self.skips.append(args),
        )

    @property
    def state(self) -> StreamState:
        return self.follower.state

    @property
    def matched(self) -> int:
        keys = BlockHasher(SIZE).keys(np.arange(200, dtype=np.uint32))
        return self.index.match_now(keys).blocks.get(HOLDER, 0)

    def do(self, steps: Steps) -> list[Replay]:
        """Returns what it wants replayed."""
        wanted = []
        for step in steps:
            if isinstance(step, Replay):
                wanted.append(step)
            else:
                self.index.apply(step)
        return wanted

    def replay(self, *answers: tuple[int, bytes], complete: bool = True) -> list[Replay]:
        wanted = []
        for seq, payload in answers:
            wanted += self.do(self.follower.replayed(seq, payload))
        return wanted + self.do(self.follower.replay_ended(complete))

    def live(self, seq: int, payload: bytes) -> list[Replay]:
        return self.do(self.follower.live(seq, payload))


def following(*payloads: bytes, first: int = 0, **options: Any) -> Gateway:
    """A gateway in step with an engine that has sent these."""
    gateway = Gateway(**options)
    gateway.do(gateway.follower.resume())
    if gateway.can_replay:
        gateway.replay(*enumerate(payloads, first))
    else:
        for seq, payload in enumerate(payloads, first):
            gateway.live(seq, payload)
    return gateway


def told(gateway: Gateway, *payloads: bytes) -> list[object]:
    """What the index is told, one batch after the other."""
    ops: list[object] = []
    for seq, payload in enumerate(payloads, 1):
        for step in gateway.follower.live(seq, payload):
            assert isinstance(step, list)
            ops += step
            gateway.index.apply(step)
    return ops


# in step


def test_events_reach_the_index() -> None:
    gateway = following(batch(stored(0, 3)), batch(removed(2)))

    assert (gateway.matched, gateway.state) == (2, EXACT)


def steps_of(gateway: Gateway, payload: bytes) -> list[list[tuple[str, int]]]:
    """What the index is told, in which steps, and of how many blocks."""
    steps = []
    for step in gateway.follower.live(1, payload):
        assert isinstance(step, list)
        told = [op for op in step if isinstance(op, Store | Copy | Remove)]
        assert told == step
        steps.append([(type(op).__name__, len(op.keys)) for op in told])
        gateway.index.apply(step)
    return steps


def test_the_index_is_told_at_once_of_events_that_have_nothing_to_do_with_each_other() -> None:
    gateway = following(batch(stored(0, 6)))
    events = [removed(4), stored(6, 8), removed(3), removed(2), stored(8, 9)]

    assert steps_of(gateway, batch(*events)) == [[("Remove", 3), ("Store", 2), ("Store", 1)]]
    assert (gateway.matched, gateway.index.num_blocks(HOLDER)) == (2, 6)
    assert gateway.follower.stats.events == 6
    assert gateway.blocks.stats.removed == 3


@pytest.mark.parametrize(
    "between", [stored(4, 6), stored(5, 7), stored(6, 7), stored(9, 10), stored(6, 7, medium="CPU")]
)
def test_events_are_applied_in_order_where_it_may_matter(between: dict[str, Any]) -> None:
    """One stores what others remove, or what follows on it, or what is not known; or elsewhere."""
    gateway = following(batch(stored(0, 6)))

    steps = steps_of(gateway, batch(removed(5), removed(4), between, removed(4)))

    assert len(steps) == 3
    assert steps[0] == [("Remove", 2)]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.integers(1, 20),
            st.sampled_from(["plain", "nones", "salt", "lora"]),
        ),
        max_size=40,
    )
)
def test_tokens_that_are_read_together_give_the_keys_of_each_event(
    drawn: list[tuple[int, int, str]],
) -> None:
    fields: dict[str, Callable[[int], dict[str, object]]] = {
        "plain": lambda _: {},
        "nones": lambda count: {"extra_keys": [None] * count},
        "salt": lambda count: {"extra_keys": [["salt"]] * count},
        "lora": lambda _: {"lora_name": "alice"},
    }
    events = [stored(first, first + count, **fields[kind](count)) for first, count, kind in drawn]
    for number, event in enumerate(events):  # no two of the same hash have other keys
        event["block_hashes"] = [1_000_000 * number + h for h in event["block_hashes"]]
    together, apart = following(batch(stored(0, 41))), following(batch(stored(0, 41)))

    assert told(together, batch(*events)) == told(apart, *map(batch, events))


def test_a_block_that_is_removed_twice_in_a_row_loses_two_copies() -> None:
    gateway = following(batch(stored(0, 3), stored(0, 3)))

    gateway.live(1, batch(removed(2), removed(2), removed(1), removed(1), removed(1), removed(0)))

    assert gateway.index.num_blocks(HOLDER) == gateway.blocks.num_blocks == gateway.matched == 1


def test_each_batch_is_told_and_the_position_is_that_of_the_last() -> None:
    gateway = following()
    assert gateway.follower.position is None

    gateway.live(0, batch(stored(0, 3)))
    gateway.live(1, batch(removed(2)))

    digest = digest_of(batch(removed(2)))
    assert gateway.follower.position == Position(1, digest, is_exact=True)
    assert [len(each.events) for each in gateway.batches] == [1, 1]


def test_a_big_batch_gives_others_a_turn_while_it_is_read() -> None:
    payload = batch(*[stored(0, 2)] * 2_000)
    gateway = following()
    steps = list(gateway.follower.live(0, payload))

    assert len(payload) > SMALL_BYTES
    assert len(steps) == 4_000


def test_a_long_event_is_applied_in_pieces_between_which_others_have_a_turn() -> None:
    blocks = 50_000
    behind = [[SIZE * number] for number in range(1, blocks + 1)]
    of_all: list[dict[str, Any]] = [
        {"lora_name": "alice", "extra_keys": [["alice"]] * blocks},
        {"lookahead_token_ids": behind},
        {},
    ]
    hashes = range(1000, 1000 + blocks)
    gone = {"type": "BlockRemoved", "block_hashes": [*hashes][100:], "medium": "GPU"}

    for fields in of_all:
        gateway = following()
        whole = EngineBlocks(HOLDER, SIZE)
        [event] = open_batch(batch(stored(0, blocks, **fields))).decoded().events
        [told] = whole.apply(event)
        assert isinstance(told, Store)
        for seq, said in enumerate([stored(0, blocks, **fields), gone]):
            for step in gateway.follower.live(seq, batch(said)):
                assert not isinstance(step, Replay)
                assert sum(len(op.keys) for op in step if isinstance(op, Store | Remove)) <= 512
                gateway.index.apply(step)
            left = 100 if seq else blocks
            assert gateway.index.match_now(told.keys).blocks == {HOLDER: left}

        assert gateway.state is EXACT
        assert gateway.follower.stats.events == 2
        assert [len(each.events) for each in gateway.batches] == [1, 1]


def test_a_picture_from_a_snapshot_is_stale_until_the_engine_proves_it() -> None:
    payloads = batch(stored(0, 3)), batch(removed(2))
    before, after = following(*payloads), Gateway()
    taken: list[HolderSnapshot] = []
    assert before.do(before.follower.take(taken.append)) == []
    [snapshot] = taken
    after.do(after.follower.restore(SavedHolder(encoded(snapshot, before.index))))

    assert after.state is StreamState.STALE
    assert after.do(after.follower.resume()) == [Replay(1)]

    after.replay((1, payloads[1]))

    assert (after.matched, after.state) == (2, EXACT)


# what cannot be read


@pytest.mark.parametrize("bad", [GARBAGE, batch(BAD_REMOVAL), batch(NAMELESS), batch(7)], ids=repr)
def test_a_batch_that_may_hide_a_removal_is_asked_for_again(bad: bytes) -> None:
    gateway = following(batch(stored(0, 3)))

    assert gateway.live(1, bad) == [Replay(0)]
    assert gateway.replay((0, batch(stored(0, 3))), (1, batch(removed(2)))) == []
    assert (gateway.matched, gateway.state) == (2, EXACT)
    assert gateway.follower.stats.skipped == {}


@pytest.mark.parametrize(
    "bad", [GARBAGE, batch(BAD_REMOVAL), batch(NAMELESS)], ids=["garbage", "removal", "nameless"]
)
def test_if_the_engine_really_sends_it_all_is_forgotten_and_the_rest_is_partial(bad: bytes) -> None:
    gateway = following(batch(stored(0, 3)))
    gateway.live(1, bad)
    gateway.replay((0, batch(stored(0, 3))), (1, bad))

    assert (gateway.matched, gateway.state) == (0, PARTIAL)
    assert gateway.follower.position == Position(1, digest_of(bad), is_exact=False)

    gateway.live(2, batch(stored(0, 2)))

    assert (gateway.matched, gateway.state) == (2, PARTIAL)


def test_one_bad_event_does_not_drop_what_its_batch_says_after_it() -> None:
    bad = batch(stored(0, 1), BAD_REMOVAL, stored(0, 2))
    gateway = following(can_replay=False)
    gateway.live(0, bad)

    assert (gateway.matched, gateway.state) == (2, PARTIAL)
    assert [len(each.errors) for each in gateway.batches] == [1]
    assert [reason for reason, _ in gateway.skips] == ["malformed"]


@pytest.mark.parametrize("event", [BAD_STORE, NEWS], ids=["stored", "news"])
def test_an_event_that_removes_nothing_only_makes_the_picture_partial(event: object) -> None:
    gateway = following(batch(stored(0, 3)))

    assert gateway.live(1, batch(event)) == []
    assert (gateway.matched, gateway.state) == (3, PARTIAL)


def test_a_replay_that_cannot_be_read_proves_nothing() -> None:
    gateway = following(batch(stored(0, 3)))
    gateway.do(gateway.follower.resume())

    assert gateway.replay((0, GARBAGE), (1, batch(removed(2)))) == [Replay(0, attempt=2)]
    assert gateway.replay((0, batch(stored(0, 3))), (1, batch(removed(2)))) == []
    assert (gateway.matched, gateway.state) == (2, EXACT)


def test_without_a_replay_socket_an_unreadable_batch_is_forgotten_over_at_once() -> None:
    gateway = following(batch(stored(0, 3)), can_replay=False)

    assert gateway.live(1, GARBAGE) == []
    assert (gateway.matched, gateway.state) == (0, PARTIAL)


def test_an_engine_that_sends_nothing_else_is_not_asked_for_ever() -> None:
    gateway = following(batch(stored(0, 3)))
    last, asked = batch(stored(0, 3)), 0
    for seq in range(1, 50):
        bad = GARBAGE + bytes([seq])
        if gateway.live(seq, bad):
            asked += 1
            gateway.replay((seq - 1, last), (seq, bad))
        last = bad

    assert asked == MAX_IN_VAIN
    assert gateway.follower.stream.last_seq == 49


# exact or partial


def test_a_stream_joined_late_is_partial_until_the_engine_clears_its_cache() -> None:
    gateway = following(batch(stored(0, 2)), first=7)

    assert gateway.state is PARTIAL

    gateway.live(8, batch(CLEARED, stored(0, 1)))

    assert (gateway.matched, gateway.state) == (1, EXACT)


def test_a_clear_that_is_forgotten_at_once_is_no_beginning() -> None:
    gateway = following(batch(stored(0, 2)), can_replay=False)
    gateway.live(1, batch(CLEARED))
    gateway.live(5, batch(stored(0, 2)))

    assert gateway.state is PARTIAL


def test_offloaded_blocks_outlive_a_clear() -> None:
    offloaded = stored(0, 1, medium="CPU")
    gateway = following(batch(stored(0, 2), offloaded), batch(CLEARED))

    assert gateway.state is PARTIAL


def test_a_tier_seen_first_after_a_clear_may_have_had_blocks_before() -> None:
    gateway = following(batch(stored(0, 2)), batch(CLEARED, stored(0, 2)), first=7)

    assert gateway.state is EXACT

    gateway.live(9, batch(stored(0, 1, medium="CPU")))

    assert gateway.state is PARTIAL


LEFT_OUT: dict[str, Callable[[], dict[str, Any]]] = {
    "unknown_hash": lambda: stored(50, 51, token_ids=[]),
    "orphans": lambda: stored(20, 21),
}


@pytest.mark.parametrize("reason", LEFT_OUT)
def test_what_is_told_and_left_out_makes_the_picture_partial(reason: str) -> None:
    gateway = following(batch(stored(0, 3)), batch(LEFT_OUT[reason]()))

    assert (gateway.matched, gateway.state) == (3, PARTIAL)


def test_a_checkpoint_of_an_unknown_place_makes_the_picture_partial_until_it_is_gone() -> None:
    group = {"group_idx": 1, "kv_cache_spec_kind": "mamba"}
    state = stored(50, 51, token_ids=[*range(8)], **group)
    gateway = following(batch(stored(0, 3)), batch(state))

    assert (gateway.matched, gateway.state) == (0, PARTIAL)

    gateway.live(2, batch({**removed(50), "group_idx": 1}))

    assert gateway.state is EXACT


def test_fields_that_are_newer_are_counted_named_and_make_the_picture_partial() -> None:
    gateway = following(batch(stored(0, 3), stored(3, 4, hashed_with=[1])))

    assert gateway.follower.stats.skipped == {"unknown_field": 1}
    assert (gateway.matched, gateway.state) == (4, PARTIAL)


def test_fields_that_say_nothing_of_a_block_are_no_news() -> None:
    gateway = following(batch(stored(0, 3, session_id="s", lookahead_token_ids=None)))

    assert gateway.state is EXACT


def test_more_tiers_than_there_can_be_make_the_picture_partial() -> None:
    events = [stored(0, 1, medium=f"tier-{i}") for i in range(20)]
    gateway = following(batch(stored(0, 3)), batch(*events))

    assert gateway.blocks.stats.skipped["medium"] > 0
    assert gateway.state is PARTIAL


def test_blocks_of_other_machines_are_not_missed() -> None:
    gateway = following(batch(stored(0, 3)), batch(stored(20, 21, locality="REMOTE")))

    assert gateway.state is EXACT


def test_a_clear_makes_up_for_what_was_left_out() -> None:
    gateway = following(batch(stored(0, 3)), batch(stored(20, 21), CLEARED, stored(0, 1)))

    assert (gateway.matched, gateway.state) == (1, EXACT)


def test_blocks_dropped_for_want_of_room_make_the_picture_partial() -> None:
    gateway = following(batch(stored(0, 3)), max_blocks=4)

    assert gateway.state is EXACT

    gateway.live(1, batch(stored(3, 9)))

    assert gateway.state is PARTIAL


def test_an_engine_that_reports_blocks_again_is_never_known_exactly() -> None:
    gateway = following(batch(stored(0, 3)))
    gateway.blocks.count_no_copies()

    assert gateway.state is PARTIAL


def test_no_piece_of_a_long_report_of_a_sparse_group_is_believed() -> None:
    full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    states = {"group_idx": 1, "kv_cache_spec_kind": "mamba"}
    gateway = following(batch(stored(0, 2000, **full)))
    gateway.blocks.count_no_copies()

    gateway.live(1, batch(stored(0, 2000, **states)))

    keys = BlockHasher(SIZE).keys(np.arange(2000 * SIZE, dtype=np.uint32))
    assert not any(gateway.index.held(HOLDER, keys, 0, 2))


def test_a_restart_is_a_new_beginning() -> None:
    gateway = following(batch(stored(0, 3), NEWS))
    gateway.do(gateway.follower.resume())
    new = batch(stored(0, 1))

    assert gateway.do(gateway.follower.replayed(0, new)) == [Replay(0)]

    gateway.replay((0, new))

    assert (gateway.matched, gateway.state) == (1, EXACT)
    assert gateway.follower.stats.forgotten == 1


def test_a_link_that_is_lost_and_comes_back_to_a_dead_replay_socket_leaves_nothing() -> None:
    gateway = following(batch(stored(0, 3)))
    gateway.follower.lost()
    wanted = gateway.do(gateway.follower.resume())
    while wanted:
        wanted = gateway.do(gateway.follower.replay_ended(False))

    assert (gateway.matched, gateway.state) == (0, BLIND)
