"""What waits of requests that did not come through us."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.model import Candidates, Endpoint
from inferway.scheduling.expected_ttft.backlog import ExternalLoad
from inferway.scheduling.idle import idle

BOTH = slice(0, 2)
COST_MS = np.full(2, 0.1)
MEAN_TOKENS = 1_000.0
OURS = np.zeros(2)
ENDPOINTS = [Endpoint("a", "http://a", 0), Endpoint("b", "http://b", 1)]


@pytest.fixture
def others() -> ExternalLoad:
    others = ExternalLoad()
    others.grow(2)
    return others


def table(now: float, count: float, waiting: float = 0.0) -> Candidates:
    """`count` requests on the first endpoint, `waiting` of them queued."""
    made = idle(ENDPOINTS, 16)
    made.now = now
    made.others[0], made.waiting[0], made.running[0] = count, waiting, count - waiting
    return made


def ahead(others: ExternalLoad, candidates: Candidates) -> tuple[list[float], list[float]]:
    """Requests, tokens."""
    found = others.ahead(candidates, BOTH, COST_MS, MEAN_TOKENS, OURS)
    assert found is not None
    return found[0].tolist(), found[1].tolist()


def test_without_others_there_is_nothing_ahead(others: ExternalLoad) -> None:
    assert others.ahead(table(0.0, 0), BOTH, COST_MS, MEAN_TOKENS, OURS) is None


def test_those_that_wait_are_ahead(others: ExternalLoad) -> None:
    assert ahead(others, table(0.0, 4, waiting=2)) == ([2.0, 0.0], [2_000.0, 0.0])


def test_those_that_were_there_when_we_came_may_be_anywhere_in_their_answers(
    others: ExternalLoad,
) -> None:
    assert ahead(others, table(0.0, 4)) == ([0.0, 0.0], [0.0, 0.0])


def test_a_new_one_has_just_begun_its_prompt_which_is_worked_off(others: ExternalLoad) -> None:
    others.ahead(table(0.0, 0), BOTH, COST_MS, MEAN_TOKENS, OURS)

    assert ahead(others, table(1.0, 1)) == ([0.0, 0.0], [1_000.0, 0.0])
    assert ahead(others, table(1.04, 1))[1] == pytest.approx([600.0, 0.0])
    assert ahead(others, table(2.0, 1))[1] == [0.0, 0.0]


def test_one_that_ends_takes_no_more_than_its_part_with_it(others: ExternalLoad) -> None:
    others.ahead(table(0.0, 0), BOTH, COST_MS, MEAN_TOKENS, OURS)
    ahead(others, table(1.0, 3))

    assert ahead(others, table(1.0, 1))[1] == [1_000.0, 0.0]


def test_a_pause_without_others_is_not_forgotten(others: ExternalLoad) -> None:
    others.ahead(table(0.0, 0), BOTH, COST_MS, MEAN_TOKENS, OURS)
    ahead(others, table(1.0, 1))
    others.ahead(table(9.0, 0), BOTH, COST_MS, MEAN_TOKENS, OURS)

    assert ahead(others, table(10.0, 1))[1] == [1_000.0, 0.0]


def test_an_engine_that_tells_who_has_not_begun_is_believed_but_for_ours(
    others: ExternalLoad,
) -> None:
    made = table(0.0, 3)
    made.awaiting_first_token[:] = 2.0, 0.0

    assert ahead(others, made) == ([2.0, 0.0], [2_000.0, 0.0])
    found = others.ahead(made, BOTH, COST_MS, MEAN_TOKENS, np.array([1.0, 0.0]))

    assert found is not None
    assert found[0].tolist() == [1.0, 0.0]


def test_no_more_are_ahead_than_there_are(others: ExternalLoad) -> None:
    made = table(0.0, 1)
    made.awaiting_first_token[:] = 5.0, 4.0

    assert ahead(others, made) == ([1.0, 0.0], [1_000.0, 0.0])


def test_one_that_does_not_tell_is_guessed_beside_one_that_does(others: ExternalLoad) -> None:
    others.ahead(table(0.0, 0), BOTH, COST_MS, MEAN_TOKENS, OURS)
    made = table(1.0, 1)
    made.awaiting_first_token[1] = 0.0

    assert ahead(others, made) == ([0.0, 0.0], [1_000.0, 0.0])
