"""A slow or broken service costs a few requests some time, and then nobody anything."""

from __future__ import annotations

import pytest

from inferway.fleet.remote_prompts import (
    MAX_ASKING,
    MAX_PAUSE_SECONDS,
    MISSES,
    PAUSE_SECONDS,
    RenderBreaker,
)


def opened(**fields: float) -> RenderBreaker:
    breaker = RenderBreaker()
    for _ in range(MISSES):
        breaker.late()
    for name, value in fields.items():
        setattr(breaker, name, value)
    return breaker


def test_so_many_questions_at_once_and_no_more() -> None:
    assert RenderBreaker(asking=MAX_ASKING - 1).may_ask(0.0)
    assert not RenderBreaker(asking=MAX_ASKING).may_ask(0.0)


def test_it_opens_after_so_many_misses_in_a_row() -> None:
    breaker = RenderBreaker()
    for miss in range(MISSES):
        assert breaker.closed, miss
        breaker.late()

    assert not breaker.closed


def test_an_answer_in_time_starts_the_count_again() -> None:
    breaker = opened(misses=MISSES - 1)
    breaker.in_time()
    breaker.late()

    assert breaker.closed


@pytest.mark.parametrize(("asking", "may"), [(0, True), (1, False)])
def test_once_open_one_question_at_a_time(asking: int, may: bool) -> None:
    assert opened(asking=asking).may_ask(0.0) is may


def test_one_answer_in_time_closes_it() -> None:
    breaker = opened()
    breaker.in_time()

    assert breaker.closed


def test_after_failures_questions_become_ever_more_seldom() -> None:
    breaker = opened()
    breaker.failed(100.0)
    assert not breaker.may_ask(100.0 + PAUSE_SECONDS - 0.01)
    assert breaker.may_ask(100.0 + PAUSE_SECONDS)

    breaker.failed(200.0)
    assert not breaker.may_ask(200.0 + 2 * PAUSE_SECONDS - 0.01)

    for _ in range(20):
        breaker.failed(300.0)
    assert breaker.may_ask(300.0 + MAX_PAUSE_SECONDS)
