"""Headroom, with numbers worked by hand from llm-d-router's scorer/latency."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.scheduling.tables import candidates, request

from inferway.errors import ConfigError
from inferway.model import Candidates
from inferway.openai_api.requests import CompletionRequest
from inferway.scheduling.columns import EXPECTED_TPOT_MS, EXPECTED_TTFT_MS
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.prefix_source import PrecisePrefixSource
from inferway.scheduling.registry import Building
from inferway_llmd.scheduling.scorers.latency import TYPE, LatencyParameters, LatencyScorer

STREAMED = CompletionRequest(model="m", prompt="", stream=True)


def latency(**parameters: object) -> LatencyScorer:
    return LatencyScorer(LatencyParameters(**parameters), PrecisePrefixSource())  # type: ignore[arg-type]


def expecting(ttft: list[float], tpot: list[float] | None = None, **columns: Any) -> Candidates:
    table = candidates(len(ttft), **columns)
    table.add(EXPECTED_TTFT_MS, np.array(ttft))
    if tpot is not None:
        table.add(EXPECTED_TPOT_MS, np.array(tpot))
    return table


def test_least_prefers_who_just_fits() -> None:
    # headrooms 400, 200, 50: x = 1, 150/350, 0; 1 - x in hundredths, cut, and one more
    scores = latency().score(request(ttft_ms=500), expecting([100, 300, 450]))

    assert scores.tolist() == [0.01, 0.58, 1.0]


def test_most_prefers_who_has_the_most_headroom() -> None:
    most = latency(headroom_selection_strategy="most")

    scores = most.score(request(ttft_ms=500), expecting([100, 300, 450]))

    assert scores.tolist() == [1.0, 0.43, 0.01]


def test_both_headrooms_of_a_stream_are_weighed() -> None:
    # first: x = 0.8 * 1 + 0.2 * 0, second: 0.8 * 0 + 0.2 * 1
    ask = request(body=STREAMED, ttft_ms=500, tpot_ms=50)

    scores = latency().score(ask, expecting([100, 300], [40, 20]))

    assert scores.tolist() == [0.2, 0.81]


def test_an_answer_in_one_piece_has_no_time_between_tokens() -> None:
    scores = latency().score(request(ttft_ms=500), expecting([100, 300], [900, 20]))

    assert scores.tolist() == [0.01, 1.0]


def test_those_that_fit_are_rated_alone() -> None:
    scores = latency().score(request(ttft_ms=200), expecting([100, 300, 150]))

    assert scores.tolist() == [0.01, 0.0, 1.0]


def test_of_those_too_late_the_idle_are_rated_alone() -> None:
    table = expecting([300, 500, 400], in_flight=[1, 0, 0])

    assert latency().score(request(ttft_ms=200), table).tolist() == [0.0, 0.01, 1.0]


def test_without_an_idle_one_a_slow_stream_is_better_than_a_late_one() -> None:
    ask = request(body=STREAMED, ttft_ms=200, tpot_ms=50)
    table = expecting([300, 100, 300], [40, 80, 90], in_flight=1)

    assert latency().score(ask, table).tolist() == [0.0, 0.51, 0.0]


def test_without_an_objective_the_soonest_is_best() -> None:
    table = expecting([300, 100, 200], in_flight=1)

    assert latency().score(request(), table).tolist() == [0.01, 1.0, 0.51]


def test_who_has_no_expectation_is_tried() -> None:
    table = expecting([300, float("nan"), 200], in_flight=1)

    assert latency().score(request(), table).tolist() == [0.0, 0.51, 0.0]


def test_without_any_expectation_load_and_prefix_decide() -> None:
    table = candidates(
        kv_usage=[0.5, 0.1], waiting=[0, 4], weighted_matched_blocks=[0, 6], prompt_blocks=[10, 10]
    )

    # (0.5 + 1 + 0) / 3, (0.9 + 0 + 0.6) / 3; then the cache alone
    assert latency().score(request(), table).tolist() == [0.5, 0.5]
    alone = latency(composite_queue_weight=0, composite_prefix_weight=0)
    assert alone.score(request(), table).tolist() == [0.5, 0.9]


def test_a_producer_that_expects_nothing_is_refused() -> None:
    parameters = LatencyParameters(latency_prediction_info_producer_name="queue-scorer")

    with pytest.raises(ConfigError, match="'queue-scorer' is no plugin that expects latencies"):
        TYPE.build(parameters, Building())


def test_it_brings_who_expects_with_it() -> None:
    scheduling = load_scheduling({"plugins": [{"type": "latency-scorer"}]})
    table, ask = candidates(2, in_flight=[0, 40]), request(tokens=100)

    for producer in scheduling.producers:
        producer.produce(ask, table)

    assert table.get(EXPECTED_TTFT_MS) is not None
    assert scheduling.chooser.choose(ask, table).targets[0].endpoint.engine == "e0"
