"""How many engines are wanted, from what was asked of late."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.scheduling.expected_ttft.demand import BUCKET_SECONDS, PARTS
from inferway.scheduling.expected_ttft.engines_wanted import (
    AIM,
    LEAST_FACTOR,
    MOST_FACTOR,
    Correction,
    EnginesWanted,
    Follows,
    LateCurve,
    Serving,
    Slo,
    WantedEstimator,
    forecast,
)
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft

SLO = Slo(ttft_ms=1000.0, itl_ms=None, share=0.9, ahead_seconds=0.0)
SHORT = np.array([1.0, *[0.0] * PARTS])  # all need next to nothing of the goal
CURVE = LateCurve(SHORT, service_ms=100.0, goal_ms=1000.0)


class Fleet:
    """Engines that get `rate` requests a second of `work` ms each, one after the other."""

    def __init__(self, engines: int, slo: Slo = SLO) -> None:
        self.plugin = ExpectedTtft()
        learning = self.plugin.learning
        learning.grow(engines)
        self.plugin.watch_demand(slo.ttft_ms or 1e12)
        assert learning.demand is not None
        learning.demand.grow(engines)
        self.demand = learning.demand
        self.estimator = WantedEstimator(slo)
        self.now = 0.0
        self.engines = engines

    def runs(self, seconds: float, rate: float, work: float = 100.0, late: float = 0.0) -> None:
        end, number = self.now + seconds, 0
        while self.now < end:
            if number % 100 == 0:
                self.wants()  # as somebody asks every few seconds
            slot = number % self.engines
            number += 1
            self.demand.sent(slot, self.now, work=work, alone_ms=work)
            is_late = int(number * late) > int((number - 1) * late)
            self.demand.answered(slot, self.now, 5000.0 if is_late else 1.0)
            self.now += 1 / rate

    def wants(
        self, others: float = 0.0, in_flight: float = 10.0, kv_usage: float = 0.0
    ) -> EnginesWanted | None:
        slots = np.arange(self.engines, dtype=np.intp)
        serving = Serving(slots, self.engines, in_flight, others, kv_usage)
        return self.estimator.look(self.plugin.learning, serving, self.now)

    def wanted(self, others: float = 0.0) -> EnginesWanted:
        found = self.wants(others)
        assert found is not None
        return found


def test_nothing_is_said_before_enough_is_known() -> None:
    fleet = Fleet(2)
    assert fleet.wants() is None
    fleet.runs(2 * BUCKET_SECONDS, 10)
    assert fleet.wants() is None
    fleet.runs(6 * BUCKET_SECONDS, 10)
    assert fleet.wants() is not None


def test_twice_the_requests_want_twice_the_engines() -> None:
    few, many = Fleet(4), Fleet(4)
    few.runs(300, 10)
    many.runs(300, 20)

    assert many.wanted().engines == pytest.approx(2 * few.wanted().engines, rel=0.2)


def test_a_model_that_nobody_asks_for_any_more_wants_nothing() -> None:
    fleet = Fleet(2)
    fleet.runs(100, 10)
    assert fleet.wanted().engines > 0
    fleet.now += 3600

    assert fleet.wanted().engines == 0.0


def test_requests_that_were_in_time_let_engines_be_busier_and_late_ones_less() -> None:
    good, bad = Fleet(4), Fleet(4)
    good.runs(600, 18, late=0.0)
    bad.runs(600, 18, late=0.3)

    assert good.estimator.correction.factor > 1.04 > 0.95 > bad.estimator.correction.factor
    assert good.wanted().engines < bad.wanted().engines


def test_a_fleet_that_is_not_as_large_as_was_said_teaches_nothing() -> None:
    """One that may not grow is late whatever is said, and one that is idle never is."""
    small, idle = Fleet(2), Fleet(50)
    small.runs(300, 20, late=1.0)
    idle.runs(300, 5)
    at_first = small.wanted(), idle.wanted()
    small.runs(900, 20, late=1.0)
    idle.runs(900, 5)

    assert small.estimator.correction.factor > LEAST_FACTOR
    assert idle.estimator.correction.factor < 1.1
    for before, after in zip(at_first, (small.wanted(), idle.wanted()), strict=True):
        assert after.busy_at_slo == pytest.approx(before.busy_at_slo, abs=0.05)


def test_a_rate_that_rises_is_led() -> None:
    steady, rising = Fleet(8, SLO._replace(ahead_seconds=60.0)), Fleet(8)
    for rate in range(10, 40):
        steady.runs(10, 39)
        rising.runs(10, rate)
    rising.estimator.slo = steady.estimator.slo

    assert rising.wanted().engines > steady.wanted().engines


def test_what_is_out_of_reach_does_not_ask_for_engines_without_end() -> None:
    fleet = Fleet(2)
    fleet.runs(300, 1, work=2000.0)

    wanted = fleet.wanted()
    assert wanted.out_of_reach == pytest.approx(1.0)
    assert wanted.engines < 2.0 / 0.1 + 1


def test_requests_of_other_gateways_make_engines_busy_and_are_their_matter() -> None:
    alone, shared = Fleet(4), Fleet(4)
    alone.runs(300, 10)
    shared.runs(300, 10)

    own, ours = alone.wanted(), shared.wanted(others=10.0)
    assert ours.busy == pytest.approx(2 * own.busy)
    assert ours.engines == pytest.approx(own.engines, rel=0.3)


def test_the_tokens_behind_the_first_have_a_limit_of_their_own() -> None:
    fleet = Fleet(4, SLO._replace(itl_ms=20.0))
    fleet.runs(300, 10)

    # USUAL_TPOT: 10 ms and 0.2 ms an answer, so 50 at a time; each of 200 tokens of 20 ms
    assert fleet.wanted().by_limit["itl"] == pytest.approx(10 * 200 * 0.020 / 50, rel=0.05)


def test_kv_blocks_in_use_want_room() -> None:
    fleet = Fleet(4)
    fleet.runs(100, 1)

    found = fleet.wants(kv_usage=0.99)
    assert found is not None
    assert found.engines == found.by_limit["kv"] == pytest.approx(4 * 0.99 / 0.9)


@given(
    values=st.lists(st.floats(0, 1e6), min_size=1, max_size=60),
    steps=st.floats(0, 100),
)
def test_a_forecast_is_near_what_was(values: list[float], steps: float) -> None:
    found = forecast(np.array(values), steps)

    assert 0 <= found <= 2 * max(values) + 1e-6


@given(level=st.floats(1, 1e5), steps=st.floats(0, 20))
def test_a_steady_rate_is_forecast_as_it_is(level: float, steps: float) -> None:
    assert forecast(np.full(60, level), steps) == pytest.approx(level)


def test_a_line_is_followed_and_noise_is_not() -> None:
    line = np.arange(60.0) + 100
    assert forecast(line, 6) == pytest.approx(165)
    noise = np.random.default_rng(1).normal(100, 10, (200, 60))
    found = [forecast(row, 6) for row in noise]
    assert np.std(found) < 5


def test_a_fall_is_not_foreseen() -> None:
    line = np.arange(60.0)[::-1] + 100
    assert forecast(line, 6) == pytest.approx(100)


@given(busy=st.floats(0.1, 0.95), engines=st.floats(1, 100))
def test_more_are_late_the_busier_and_the_fewer_engines_are(busy: float, engines: float) -> None:
    here = CURVE.late(busy, engines)

    assert 0 <= here <= CURVE.late(busy + 0.02, engines) + 1e-12 <= 1 + 1e-9
    assert CURVE.late(busy, engines + 1) <= here + 1e-12


@given(work=st.floats(0.01, 500))
def test_large_fleets_may_be_busier(work: float) -> None:
    here = CURVE.busiest(0.1, work)

    assert here <= CURVE.busiest(0.2, work) + 1e-9
    if work > 1:
        assert here <= CURVE.busiest(0.1, 2 * work) + 0.02


BOTH = Follows(up=True, down=True)


@settings(max_examples=20)
@given(most=st.floats(0.02, 0.5), begin=st.floats(0.5, 1.4), requests=st.floats(0.1, 1000))
def test_as_many_are_late_as_may_be(most: float, begin: float, requests: float) -> None:
    """A fleet of which the more are late the busier it may be: none below 0.5, all above 1.5."""
    correction = Correction(begin)
    late = 0.0
    for _ in range(2000):
        late = min(max(correction.factor - 0.5, 0.0), 1.0)
        correction.learn(np.array([requests]), np.array([late * requests]), most, BOTH)

    assert late == pytest.approx(most * AIM, rel=0.02)


@given(
    buckets=st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1)), max_size=50),
    up=st.booleans(),
    down=st.booleans(),
)
def test_the_factor_is_bounded_and_moves_only_where_the_fleet_follows(
    buckets: list[tuple[float, float]], up: bool, down: bool
) -> None:
    correction = Correction()
    for seen, late in buckets:
        before = correction.factor
        correction.learn(np.array([seen]), np.array([seen * late]), 0.1, Follows(up, down))
        assert LEAST_FACTOR <= correction.factor <= MOST_FACTOR
        assert up or correction.factor >= before
        assert down or correction.factor <= before
        assert abs(np.log(correction.factor / before)) < 0.05
