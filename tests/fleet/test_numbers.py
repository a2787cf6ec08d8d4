"""Holders' numbers stay small, and are nobody's while something may still go by them."""

from __future__ import annotations

from inferway.fleet.table import REST_SECONDS, HolderIds


def test_numbers_are_given_in_order() -> None:
    numbers = HolderIds()

    assert [numbers.take() for _ in range(3)] == [0, 1, 2]


def test_one_that_was_given_back_rests_until_it_is_idle() -> None:
    numbers = HolderIds()
    for _ in range(3):
        numbers.take()
    numbers.give_back(1, now=10.0)

    assert numbers.rested(10.0 + REST_SECONDS / 2, lambda _: True) == []
    assert numbers.rested(10.0 + REST_SECONDS, lambda _: False) == []
    assert numbers.take() == 3
    assert numbers.rested(10.0 + REST_SECONDS, lambda _: True) == [1]
    assert numbers.take() == 1
    assert numbers.take() == 4


def test_pods_that_come_and_go_for_ever_need_no_more_numbers() -> None:
    numbers, now = HolderIds(), 0.0
    for _ in range(1000):
        numbers.give_back(numbers.take(), now)
        now += REST_SECONDS
        numbers.rested(now, lambda _: True)

    assert numbers.given == 1
