"""Endpoints and their slots in what was learned."""

from __future__ import annotations

import numpy as np

from inferway.model import Endpoint
from inferway.scheduling.per_endpoint import FORGET_SECONDS, MOST_LISTS, EndpointSlots


class Owner:
    """Of the tables."""

    def __init__(self) -> None:
        self.size = 0
        self.forgotten: list[int] = []
        self.slots = EndpointSlots(self.grow, self.forgotten.append)

    def grow(self, size: int) -> None:
        self.size = size


def endpoints(*names: str, first_holder: int = 0) -> list[Endpoint]:
    return [Endpoint(name, f"http://{name}", first_holder + n) for n, name in enumerate(names)]


def test_slots_are_in_the_order_of_the_endpoints() -> None:
    owner = Owner()

    assert owner.slots.rows(endpoints("a", "b", "c"), 0.0) == slice(0, 3)
    assert owner.size == 3


def test_endpoints_that_do_not_stand_together_get_their_slots_too() -> None:
    owner = Owner()
    owner.slots.rows(endpoints("a", "b", "c"), 0.0)

    assert np.array_equal(owner.slots.rows(endpoints("c", "a"), 0.0), [2, 0])  # type: ignore[arg-type]


def test_an_engine_that_comes_back_has_its_old_slot() -> None:
    owner = Owner()
    owner.slots.rows(endpoints("a", "b"), 0.0)

    owner.slots.rows(endpoints("b", first_holder=9), 1.0)

    assert owner.slots.slot(endpoints("b", first_holder=9)[0]) == 1
    assert owner.size == 2


def test_the_slot_of_an_engine_long_gone_is_given_to_a_new_one() -> None:
    owner = Owner()
    owner.slots.rows(endpoints("a", "b"), 0.0)
    stays = endpoints("a")
    owner.slots.rows(stays, FORGET_SECONDS)

    owner.slots.rows(endpoints("a", "new"), FORGET_SECONDS + 1)

    assert owner.forgotten == [1]
    assert owner.size == 2
    assert owner.slots.names() == {"a": 0, "new": 1}


def test_the_slot_of_one_that_is_a_candidate_all_the_time_is_kept() -> None:
    owner = Owner()
    old = endpoints("a")
    owner.slots.rows(old, 0.0)
    owner.slots.rows(old, FORGET_SECONDS)

    owner.slots.rows(endpoints("new"), FORGET_SECONDS + 1)

    assert owner.forgotten == []
    assert owner.size == 2


def test_what_is_remembered_of_lists_is_bounded() -> None:
    owner = Owner()

    for number in range(3 * MOST_LISTS):
        owner.slots.rows(endpoints("a", "b"), float(number))

    assert owner.size == 2
    assert len(owner.slots._tables.known()) <= MOST_LISTS


def test_a_list_that_is_remembered_no_more_was_used_all_the_same() -> None:
    owner = Owner()
    old = endpoints("a")
    owner.slots.rows(old, 0.0)
    owner.slots.rows(old, FORGET_SECONDS)
    for number in range(MOST_LISTS):
        owner.slots.rows(endpoints("b"), FORGET_SECONDS + number / 1000)

    owner.slots.rows(endpoints("new"), FORGET_SECONDS + 1)

    assert owner.forgotten == []
