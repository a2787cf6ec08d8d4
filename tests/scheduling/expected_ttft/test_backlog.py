"""The work that a new request finds ahead of itself."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.scheduling.expected_ttft.backlog import Backlog, QueuedRequest


@pytest.fixture
def backlog() -> Backlog:
    backlog = Backlog()
    backlog.grow(2)
    return backlog


def test_what_waits_is_added_up_for_each_engine(backlog: Backlog) -> None:
    backlog.add(QueuedRequest(0, 100.0, 10.0), now=1.0)
    backlog.add(QueuedRequest(0, 50.0, 5.0), now=2.0)
    backlog.add(QueuedRequest(1, 7.0, 1.0), now=3.0)

    assert backlog.tokens.tolist() == [150.0, 7.0]
    assert backlog.requests.tolist() == [2.0, 1.0]


def test_the_first_is_at_work_since_it_came_to_an_idle_engine(backlog: Backlog) -> None:
    backlog.add(QueuedRequest(0, 100.0, 10.0), now=1.0)
    backlog.add(QueuedRequest(0, 50.0, 5.0), now=2.0)

    assert backlog.since_ms[0] == 1.0 * 1000
    assert (backlog.first_tokens[0], backlog.first_alone_ms[0]) == (100.0, 10.0)


def test_when_the_first_begins_to_answer_the_next_has_its_turn(backlog: Backlog) -> None:
    first, second = QueuedRequest(0, 100.0, 10.0), QueuedRequest(0, 50.0, 5.0)
    backlog.add(first, now=1.0)
    backlog.add(second, now=2.0)

    assert backlog.begun(first, now=4.0)
    assert backlog.since_ms[0] == 4.0 * 1000
    assert (backlog.tokens[0], backlog.first_tokens[0]) == (50.0, 50.0)


def test_what_waits_is_never_less_than_what_the_first_of_it_has(backlog: Backlog) -> None:
    """Or less than nothing would be ahead of a request, once the first is nearly done."""
    first, second = QueuedRequest(0, 0.1, 10.0), QueuedRequest(0, 0.7, 5.0)
    assert 0.1 + 0.7 - 0.7 < 0.1
    backlog.add(first, now=1.0)
    backlog.add(second, now=2.0)

    backlog.begun(second, now=3.0)

    assert backlog.tokens[0] == backlog.first_tokens[0] == 0.1


def test_one_that_overtakes_the_first_leaves_it_at_work(backlog: Backlog) -> None:
    first, second = QueuedRequest(0, 100.0, 10.0), QueuedRequest(0, 50.0, 5.0)
    backlog.add(first, now=1.0)
    backlog.add(second, now=2.0)

    backlog.begun(second, now=3.0)

    assert backlog.since_ms[0] == 1.0 * 1000
    assert backlog.tokens[0] == 100.0


def test_an_engine_where_nothing_waits_is_never_late(backlog: Backlog) -> None:
    waiting = QueuedRequest(0, 0.1, 10.0)
    backlog.add(waiting, now=1.0)
    backlog.begun(waiting, now=2.0)

    assert (backlog.tokens[0], backlog.first_tokens[0]) == (0.0, 0.0)
    assert np.isinf(backlog.first_alone_ms).all()


def test_one_can_begin_only_once(backlog: Backlog) -> None:
    waiting = QueuedRequest(0, 100.0, 10.0)
    backlog.add(waiting, now=1.0)

    assert backlog.begun(waiting, now=2.0)
    assert not backlog.begun(waiting, now=3.0)
    assert backlog.requests[0] == 0.0


def test_one_whose_beginning_nobody_sees_is_assumed_to_begin_as_expected(backlog: Backlog) -> None:
    unseen, after = QueuedRequest(0, 100.0, 10.0), QueuedRequest(0, 50.0, 5.0)
    backlog.add(unseen, now=1.0)
    backlog.assume_begun_at(unseen, 1.5)
    backlog.add(after, now=1.2)

    backlog.advance(1.4)
    before = backlog.requests[0]
    backlog.advance(9.0)

    assert before == 2.0
    assert backlog.requests[0] == 1.0
    assert backlog.since_ms[0] == 1.5 * 1000
