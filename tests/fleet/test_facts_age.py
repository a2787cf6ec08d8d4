"""When engines are asked again for all that they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.fleet.engine_facts import FIRST_SECONDS, MOST_SECONDS, FactsAge


def test_an_engine_of_which_nothing_is_known_is_asked_at_once() -> None:
    assert FactsAge().are_due(0.0)


def test_an_engine_that_has_not_worked_since_it_told_all_is_asked_seldom() -> None:
    age = FactsAge()
    age.told(0.0, is_same=False)

    assert not age.are_due(MOST_SECONDS)
    assert age.are_due(MOST_SECONDS + 1)


def test_an_engine_that_works_and_tells_the_same_is_asked_ever_more_seldom() -> None:
    age, now, pauses = FactsAge(), 0.0, []
    age.told(now, is_same=False)
    for _ in range(5):
        age.has_worked = True
        asked = now
        while not age.are_due(now):
            now += 1.0
        pauses.append(now - asked - 1.0)
        age.told(now, is_same=True)

    assert pauses == [10.0, 40.0, 160.0, 300.0, 300.0]


def test_an_engine_that_tells_something_else_is_asked_soon_again() -> None:
    age = FactsAge(asked=0.0, has_worked=True, holds=160.0)
    age.told(100.0, is_same=False)
    age.has_worked = True

    assert age.are_due(100.0 + FIRST_SECONDS + 1)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20), st.booleans())
def test_none_is_asked_sooner_or_later_than_it_says(
    told: list[tuple[bool, bool]], has_worked: bool
) -> None:
    age = FactsAge()
    for worked, is_same in told:
        age.has_worked = worked
        age.told(0.0, is_same=is_same)
    age.told(0.0, is_same=True)
    age.has_worked = has_worked

    assert age.are_due(MOST_SECONDS + 1)
    assert not age.are_due(FIRST_SECONDS)


@pytest.mark.parametrize("has_worked", [False, True])
def test_what_may_be_another_engine_is_asked_at_once(has_worked: bool) -> None:
    age = FactsAge(0.0, has_worked, 160.0)
    age.asked = None

    assert age.are_due(1.0)
