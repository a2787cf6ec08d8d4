"""What an engine has dropped of late is remembered, and no more than fits."""

from __future__ import annotations

from inferway.kv.events.removals import Removals
from inferway.kv.index.protocol import GPU, Clear, Remove, Store


def test_the_first_removal_since_then_is_found() -> None:
    removals = Removals()
    removals.note([Remove(0, [1, 2])], 7, 10.0)
    removals.note([Remove(0, [2, 3])], 8, 11.0)

    first, second = removals.of([2], 10.0), removals.of([2], 10.5)

    assert first is not None
    assert (first.seq, first.at) == (7, 10.0)
    assert second is not None
    assert second.seq == 8
    assert removals.of([4], 0.0) is None
    assert removals.of([3], 11.5) is None


def test_a_clear_takes_everything() -> None:
    removals = Removals()
    removals.note([Remove(0, [1])], 1, 1.0)
    removals.note([Clear(0)], 2, 2.0)

    found = removals.of([99], 0.0)

    assert found is not None
    assert (found.seq, found.keys) == (2, None)


def test_windows_and_stores_do_not_count() -> None:
    removals = Removals()

    removals.note([Remove(0, [1], GPU, 1), Store(0, [1])], 1, 1.0)

    assert removals.of([1], 0.0) is None


def test_the_oldest_are_forgotten() -> None:
    removals = Removals(most_keys=10)
    for number in range(20):
        removals.note([Remove(0, [number, number + 100])], number, float(number))

    assert removals.of([0], 0.0) is None
    assert removals.of([19], 0.0) is not None
    assert removals.of([14], 0.0) is None
