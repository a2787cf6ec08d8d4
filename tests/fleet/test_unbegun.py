"""Who has not begun to answer, told apart by an engine's counters."""

from __future__ import annotations

import pytest

from inferway.fleet.table import WINDOW_SCRAPES, FirstTokenCounter


@pytest.fixture
def known() -> FirstTokenCounter:
    """An engine that had nothing to do when it was looked at first."""
    awaiting_first_token = FirstTokenCounter()
    awaiting_first_token.told(0, 0, 20)  # twenty ended without being counted
    return awaiting_first_token


def test_an_engine_without_counters_tells_nothing() -> None:
    assert FirstTokenCounter().told(3, 1, None) == -1


def test_a_prompt_that_is_computed_has_not_begun(known: FirstTokenCounter) -> None:
    assert known.told(1, 0, 20) == 1
    assert known.told(1, 0, 21) == 0
    assert known.told(0, 0, 20) == 0


def test_those_that_wait_have_not_begun(known: FirstTokenCounter) -> None:
    assert known.told(2, 3, 21) == 4


def test_of_an_engine_that_is_busy_all_that_run_are_taken_to_answer_at_first() -> None:
    awaiting_first_token = FirstTokenCounter()

    assert awaiting_first_token.told(4, 2, 10) == 2
    assert awaiting_first_token.told(5, 2, 10) == 3


def test_a_request_that_ends_uncounted_is_made_up_for(known: FirstTokenCounter) -> None:
    known.told(2, 0, 22)

    assert known.told(1, 0, 22) == 0  # one was aborted while it answered
    assert known.told(2, 0, 22) == 1


def test_a_request_that_ends_without_a_token_is_made_up_for_when_nothing_is_left(
    known: FirstTokenCounter,
) -> None:
    known.told(1, 0, 20)
    known.told(0, 0, 19)

    assert known.told(1, 0, 20) == 0


def test_what_is_there_all_the_time_was_counted_wrong(known: FirstTokenCounter) -> None:
    known.told(2, 0, 20)
    for _ in range(2 * WINDOW_SCRAPES):
        known.told(2, 0, 20)

    assert known.told(2, 0, 20) == 0
