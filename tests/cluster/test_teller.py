"""What workers are told makes their indexes equal to the hub's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.chaos.workers import contents
from tests.contract.test_index import WEIGHTS, stories

from inferway.cluster.bus.messages import Message
from inferway.cluster.hub_watch import AskedIndex, HeardIndex
from inferway.cluster.teller import ToldIndex
from inferway.kv.index.protocol import Op, Store
from inferway.model import BlockKey


def nobody(_: Message) -> None:
    """The hub that the worker would ask."""


def told(max_blocks: int) -> tuple[ToldIndex, HeardIndex]:
    """The hub's index, and a worker's that hears all of it at once."""
    index = ToldIndex(weights=WEIGHTS, max_blocks=max_blocks)
    heard = HeardIndex(nobody, weights=WEIGHTS)
    index.tell_to(heard.hear)
    return index, heard


def test_of_what_follows_an_evicted_block_workers_keep_what_the_hub_had_before() -> None:
    index, heard = told(max_blocks=3)
    index.apply([Store(0, [1]), Store(0, [4], parent=3), Store(0, [1, 2])])

    index.apply([Store(0, [3, 4], parent=2)])

    assert index.evicted
    assert contents(heard) == contents(index) == {(0, 0, 0, 1), (0, 0, 0, 4)}


@given(story=stories(), max_blocks=st.integers(1, 15))
def test_what_the_hub_has_no_room_for_workers_have_not_either(
    story: tuple[list[list[BlockKey]], list[list[Op]]], max_blocks: int
) -> None:
    index, heard = told(max_blocks)
    for batch in story[1]:
        index.apply(batch)

        assert contents(heard) == contents(index)
        assert [heard.num_blocks(h) for h in range(4)] == [index.num_blocks(h) for h in range(4)]


def test_prompts_that_workers_are_asked_for_cost_no_block_that_the_engine_has_removed() -> None:
    """Each index alone would keep what it was asked for last; and of a block that the hub has
    dropped it may never hear that the engine has removed it."""
    index, heard = told(max_blocks=2)
    index.apply([Store(0, [1])])
    index.apply([Store(0, [2])])
    for _ in range(9):
        heard.match_now([1])
    index.apply([Store(0, [3]), Store(0, [4])])

    assert contents(heard) == contents(index)
    assert index.num_keys <= 2


def test_what_workers_prompts_ask_for_is_not_the_first_to_make_room() -> None:
    index = ToldIndex(max_blocks=4)
    heard = AskedIndex(nobody)
    index.tell_to(heard.hear)
    index.apply([Store(0, [key]) for key in (1, 2, 3, 4)])
    index.apply([Store(0, [5])])  # whoever was there for long has no mark any more
    left = min(key for (*_, key) in contents(index) if key != 5)
    heard.match_now([left])

    index.note_matched(heard.asked())
    index.apply([Store(0, [6]), Store(0, [7])])

    assert left in {key for (*_, key) in contents(index)}
    assert heard.asked() == []
