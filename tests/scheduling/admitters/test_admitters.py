"""Who is refused when the engines are full (field notes 3.3, 3.7)."""

from __future__ import annotations

from random import Random

import pytest
from tests.scheduling.tables import candidates, request

from inferway.scheduling.admitters import SATURATED, ProbabilisticAdmitter, UtilizationDetector

SHEDDABLE = request(priority=-1)
# max(5/5, 0.4/0.8), max(0/5, 0.8/0.8), max(10/5, 0)
FULL = candidates(waiting=[5, 0, 10], kv_usage=[0.4, 0.8, 0.0])
BUSY = candidates(waiting=[1, 0, 0], kv_usage=[0.0, 0.32, 0.24])  # 0.2, 0.4, 0.3


def test_saturation_is_the_mean_of_the_scarcer_resource() -> None:
    assert UtilizationDetector().saturation(FULL) == pytest.approx(4 / 3)
    assert UtilizationDetector(10, 0.4).saturation(FULL) == pytest.approx(4 / 3)
    assert UtilizationDetector().saturation(BUSY) == pytest.approx(0.3)


def test_sheddable_requests_are_refused_while_the_engines_are_full() -> None:
    assert UtilizationDetector().refusal(SHEDDABLE, FULL) == SATURATED
    assert UtilizationDetector().refusal(SHEDDABLE, BUSY) is None
    assert UtilizationDetector().refusal(request(), FULL) is None


def test_as_a_filter_it_leaves_endpoints_below_their_limits() -> None:
    table = candidates(waiting=[4, 5, 0], kv_usage=[0.7, 0.0, 0.8])

    assert UtilizationDetector().keep(request(), table).tolist() == [True, False, False]
    assert UtilizationDetector(headroom=0.25).keep(request(), table).tolist() == [True] * 3
    assert UtilizationDetector(1).keep(request(), FULL).tolist() == [True] * 3  # none is


def test_sheddable_requests_are_refused_the_more_often_the_fuller_the_engines() -> None:
    admitter = ProbabilisticAdmitter(random=Random(1))

    refused = sum(admitter.refusal(SHEDDABLE, BUSY) is not None for _ in range(2000))

    assert refused / 2000 == pytest.approx(0.3**5 * 300, abs=0.05)  # 0.729, 5 sigma
    assert admitter.refusal(SHEDDABLE, FULL) is not None
    assert admitter.refusal(SHEDDABLE, candidates()) is None
    assert admitter.refusal(request(), FULL) is None
