"""An engine that fails gets no requests for a while, then one at a time, then all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.config import EjectionSettings
from inferway.routing.limits.circuit_breaker import BreakerState, CircuitBreaker

SETTINGS = EjectionSettings(
    failures=3, share=0.5, least=10, window=30.0, seconds=5.0, max_seconds=20.0
)


def opened(now: float = 100.0) -> CircuitBreaker:
    breaker = CircuitBreaker(SETTINGS)
    assert [breaker.failed(now) for _ in range(3)] == [False, False, True]
    return breaker


def test_failures_in_a_row_put_it_out_for_its_first_time() -> None:
    breaker = opened()

    assert [breaker.state(t) for t in (100, 104.9, 105)] == [
        BreakerState.OPEN,
        BreakerState.OPEN,
        BreakerState.HALF_OPEN,
    ]
    assert [breaker.takes(t) for t in (100, 104.9, 105)] == [False, False, True]


def test_a_success_between_them_starts_the_row_anew() -> None:
    breaker = CircuitBreaker(SETTINGS)
    for _ in range(3):
        assert not breaker.failed(1.0)
        assert not breaker.failed(1.0)
        breaker.succeeded(1.0)

    assert breaker.state(1.0) is BreakerState.CLOSED


def test_half_of_its_requests_put_it_out_though_never_three_in_a_row() -> None:
    breaker = CircuitBreaker(SETTINGS)
    out = []
    for _ in range(5):
        out.append(breaker.failed(1.0))
        breaker.succeeded(1.0)
    out.append(breaker.failed(1.0))

    assert out == [False] * 5 + [True]


def test_what_was_long_ago_does_not_count() -> None:
    breaker = CircuitBreaker(SETTINGS)
    for minute in range(100):
        assert not breaker.failed(minute * 60.0)
        breaker.succeeded(minute * 60.0)


def test_only_one_probe_goes_there_at_a_time() -> None:
    breaker = opened()
    breaker.sent(105.0)

    assert not breaker.takes(105.0)
    assert not breaker.takes(109.9)


def test_a_probe_that_says_nothing_is_given_up() -> None:
    breaker = opened()
    breaker.sent(105.0)

    assert breaker.takes(110.0)


def test_a_probe_whose_client_went_away_makes_room_for_the_next() -> None:
    breaker = opened()
    breaker.sent(105.0)
    breaker.abandoned()

    assert breaker.takes(105.0)


def test_a_probe_that_is_answered_closes_it() -> None:
    breaker = opened()
    breaker.sent(105.0)
    assert breaker.succeeded(106.0)

    assert breaker.state(106.0) is BreakerState.CLOSED
    assert not breaker.failed(106.0)  # what was before does not count


def test_each_further_time_is_twice_as_long_up_to_the_longest() -> None:
    breaker = opened()
    seconds, now = [], 105.0
    for _ in range(4):
        breaker.sent(now)
        assert breaker.failed(now)
        out = next(t for t in range(1, 100) if breaker.takes(now + t))
        seconds.append(out)
        now += out

    assert seconds == [10, 20, 20, 20]


@pytest.mark.parametrize(("after", "out"), [(19.0, 10.0), (20.0, 5.0)])
def test_its_past_is_forgotten_when_it_was_well_for_long(after: float, out: float) -> None:
    breaker = opened()
    breaker.sent(105.0)
    breaker.succeeded(105.0)
    for _ in range(3):
        breaker.failed(105.0 + after)

    assert not breaker.takes(105.0 + after + out - 0.1)
    assert breaker.takes(105.0 + after + out)


def test_failures_of_requests_that_were_there_before_do_not_prolong_it() -> None:
    breaker = opened()
    assert not breaker.failed(103.0)

    assert breaker.takes(105.0)


def test_an_answer_of_a_request_that_was_there_before_does_not_close_it() -> None:
    breaker = opened()
    assert not breaker.succeeded(103.0)

    assert breaker.state(103.0) is BreakerState.OPEN


def test_it_can_be_forgotten_when_it_was_well_for_long() -> None:
    breaker = CircuitBreaker(SETTINGS)
    breaker.failed(100.0)
    breaker.succeeded(101.0)

    assert not breaker.is_idle(102.0)
    assert breaker.is_idle(101.0 + 5 * SETTINGS.window)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["sent", "succeeded", "failed", "abandoned"]), st.floats(0.0, 30.0)),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_it_is_asked_again_before_long(events: list[tuple[str, float]]) -> None:
    breaker, now = CircuitBreaker(SETTINGS), 100.0
    for what, seconds in events:
        now += seconds
        if what == "abandoned":
            breaker.abandoned()
        else:
            getattr(breaker, what)(now)
        if breaker.state(now) is BreakerState.CLOSED:
            assert breaker.takes(now)
        if breaker.state(now) is BreakerState.OPEN:
            assert not breaker.takes(now)

    assert breaker.takes(now + SETTINGS.max_seconds)


@given(EVENTS)
def test_it_is_closed_by_nothing_but_a_success(events: list[tuple[str, float]]) -> None:
    breaker, now = opened(), 100.0
    for what, seconds in events:
        now += seconds
        if what == "succeeded":
            continue
        breaker.abandoned() if what == "abandoned" else getattr(breaker, what)(now)

        assert breaker.state(now) is not BreakerState.CLOSED
