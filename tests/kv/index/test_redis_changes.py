"""The order in which changed keys are written."""

from __future__ import annotations

from inferway.kv.index.redis.writer import Changes


def test_keys_are_taken_in_the_order_of_their_last_change() -> None:
    changes = Changes()
    changes.note([1, 2, 3])
    changes.note([2])
    changes.note([4, 1])

    assert list(changes.take(10)) == [3, 2, 4, 1]
    assert not changes


def test_a_key_that_changes_again_waits_for_its_new_turn() -> None:
    """Written before it, it would be gone while its descendants are still there."""
    changes = Changes()
    changes.note([2, 3, 4])
    taken = [*changes.take(1)]
    changes.note([4, 3])
    while changes:
        taken += changes.take(1)

    assert taken == [2, 4, 3]


def test_a_whole_picture_comes_before_what_changes_meanwhile() -> None:
    changes = Changes([[1, 2], [], [3]])
    changes.note([2, 9])

    assert list(changes.take(2)) == [1]
    assert changes
    assert list(changes.take(2)) == [3]
    assert list(changes.take(2)) == [2, 9]


def test_only_what_waits_for_its_turn_is_counted() -> None:
    changes = Changes()
    changes.note([1, 2, 3])
    changes.note([1])
    assert len(changes) == 3

    changes.take(1)

    assert len(changes) == 0
    assert changes
