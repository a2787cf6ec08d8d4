"""Who is refused when the engines are full (field notes 3.3, 3.7)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from tests.scheduling.tables import candidates, request

from inferway.openai_api.requests import CompletionRequest
from inferway.scheduling.admitters import (
    SATURATED,
    LatencySloAdmitter,
    ProbabilisticAdmitter,
    UtilizationDetector,
)
from inferway.scheduling.columns import EXPECTED_TPOT_MS, EXPECTED_TTFT_MS

SHEDDABLE = request(priority=-1)
# max(5/5, 0.4/0.8), max(0/5, 0.8/0.8), max(10/5, 0)
FULL = candidates(waiting=[5, 0, 10], kv_usage=[0.4, 0.8, 0.0])
BUSY = candidates(waiting=[1, 0, 0], kv_usage=[0.0, 0.32, 0.24])  # 0.2, 0.4, 0.3


def test_saturation_is_the_mean_of_the_scarcer_resource() -> None:
    assert UtilizationDetector().loads(FULL).mean() == pytest.approx(4 / 3)
    assert UtilizationDetector(10, 0.4).loads(FULL).mean() == pytest.approx(4 / 3)
    assert UtilizationDetector().loads(BUSY).mean() == pytest.approx(0.3)


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


STREAM = CompletionRequest(model="m", prompt="", stream=True)
# llm-d-router ebab687, admitter/latencyslo/plugin_test.go: what two endpoints are expected to take
# (ms to the first token, ms for each further one), against 100 and 30 that are asked for.
LATE = [(150.0, 40.0), (130.0, 35.0)]


@pytest.mark.parametrize(
    ("expected", "kv_usage", "running", "asked", "is_refused"),
    [
        pytest.param(LATE[:1], [0.5], [5], {"priority": 1}, False, id="not-sheddable"),
        pytest.param(LATE[:1], [0.5], [5], {"ttft_ms": None, "tpot_ms": None}, False, id="no-slo"),
        pytest.param(LATE, [0.5, 0.4], [5, 3], {}, True, id="all-late-all-busy"),
        pytest.param(LATE, [0.5, 0.4], [5, 0], {}, False, id="one-is-idle"),
        pytest.param(LATE, [0.5, 0.01], [5, 3], {}, False, id="one-is-cold"),
        pytest.param([LATE[0], (80.0, 25.0)], [0.5, 0.4], [5, 3], {}, False, id="one-in-time"),
        pytest.param([], [0.5], [5], {}, False, id="nothing-is-expected"),
        pytest.param([(90.0, 40.0)], [0.5], [5], {"tpot_ms": None}, False, id="the-other-is-free"),
    ],
)
def test_sheddable_requests_are_refused_if_nobody_is_in_time(
    expected: list[tuple[float, float]],
    kv_usage: list[float],
    running: list[float],
    asked: dict[str, float | None],
    is_refused: bool,
) -> None:
    table = candidates(kv_usage=kv_usage, running=running)
    if expected:
        table.add(EXPECTED_TTFT_MS, np.array([ttft for ttft, _ in expected]))
        table.add(EXPECTED_TPOT_MS, np.array([tpot for _, tpot in expected]))
    given = {"priority": -1, "ttft_ms": 100.0, "tpot_ms": 30.0, **asked}

    refusal = LatencySloAdmitter().refusal(request(body=STREAM, **given), table)  # type: ignore[arg-type]

    assert (refusal is not None) is is_refused
