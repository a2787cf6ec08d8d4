"""llm-d's own table (llm-d-router ebab687, filter/prefixcacheaffinity/plugin_test.go): of 100
blocks so many held, so many milliseconds to the first token, so many tokens in flight."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.scheduling.plugin_types import TYPES
from tests.scheduling.tables import candidates, request

from inferway.errors import ConfigError
from inferway.model import Candidates
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.plugin import Filter
from inferway.scheduling.registry import Building
from inferway_llmd.scheduling.producers.inflight_load import INFLIGHT_LOAD, token_column

NAME = "prefix-cache-affinity-filter"
PRECISE = {"prefixMatchInfoProducerName": "precise-prefix-cache-producer"}


def built(**parameters: Any) -> Filter:
    kind = TYPES[NAME]
    given = {"maxTTFTPenaltyMs": 0, **PRECISE, **parameters}
    made = kind.build(msgspec.convert(given, kind.parameters), Building())
    assert isinstance(made, Filter)
    return made


def table(*endpoints: tuple[int, float, float]) -> Candidates:
    held = [each[0] for each in endpoints]
    made = candidates(matched_blocks=held, weighted_matched_blocks=held, prompt_blocks=100)
    made.add(EXPECTED_TTFT_MS, np.array([each[1] for each in endpoints]))
    made.add(token_column(INFLIGHT_LOAD), np.array([each[2] for each in endpoints]))
    return made


A_OR_B = ((90, 10.0, 500.0), (10, 10.0, 50.0))


@pytest.mark.parametrize(
    ("parameters", "endpoints", "kept"),
    [
        pytest.param({"affinityThreshold": 0}, [(0, 10, 0), (90, 20, 0)], [0, 1], id="disabled"),
        pytest.param({}, [(90, 10, 0)], [0], id="one-endpoint"),
        pytest.param({}, [(10, 10, 0), (20, 20, 0), (50, 30, 0)], [0, 1, 2], id="none-holds"),
        pytest.param(
            {"maxTTFTPenaltyMs": 5000},
            [(90, 100, 0), (85, 120, 0), (10, 50, 0)],
            [0, 1],
            id="narrowed",
        ),
        pytest.param({"maxTTFTPenaltyMs": 100}, [(90, 500, 0), (10, 50, 0)], [0, 1], id="too-late"),
        # llm-d's milliseconds from 1000 tokens a second: 500 and 50, as learned ones here
        pytest.param(
            {"maxTTFTPenaltyMs": 1000}, [(90, 500, 500), (10, 50, 50)], [0], id="not-too-late"
        ),
        pytest.param({}, [(90, 5000, 0), (10, 50, 0)], [0], id="lateness-does-not-matter"),
        pytest.param(
            {"explorationProbability": 1.0}, [(90, 100, 0), (10, 50, 0)], [0, 1], id="exploring"
        ),
        # of the years before peakPrefillThroughput
        pytest.param({"maxTokensInFlightPenalty": 100}, A_OR_B, [0, 1], id="too-many-tokens"),
        pytest.param({"maxTokensInFlightPenalty": 1000}, A_OR_B, [0], id="not-too-many-tokens"),
        # llm-d-router 066c20e: without a signal the gate is no reason to narrow
        pytest.param(
            {"maxTTFTPenaltyMs": 100},
            [(90, float("nan"), 0), (10, 50, 0)],
            [0, 1],
            id="nothing-expected",
        ),
        pytest.param({}, [(80, 1, 0), (79, 1, 0)], [0], id="the-threshold-itself"),
    ],
)
def test_it_keeps_the_endpoints_that_llm_d_keeps(
    parameters: dict[str, Any], endpoints: list[tuple[int, float, float]], kept: list[int]
) -> None:
    found = built(**parameters).keep(request(), table(*endpoints))

    assert found.nonzero()[0].tolist() == kept


@pytest.mark.parametrize(
    "parameters",
    [
        {"affinityThreshold": 1.5},
        {"explorationProbability": -0.1},
        {"peakPrefillThroughput": -1},
        {"ttftSource": "bogus"},
        {"maxTTFTPenaltyMs": -1},
    ],
)
def test_what_llm_d_refuses_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"parameters of {NAME}: "):
        load_scheduling({"plugins": [{"type": NAME, "parameters": parameters}]})


def test_what_it_reads_is_there_and_scores_nothing() -> None:
    scheduling = load_scheduling({"plugins": [{"type": NAME}]})
    made, ask = candidates(3), request(tokens=64)

    for producer in scheduling.producers:
        producer.produce(ask, made)

    assert made.get(EXPECTED_TTFT_MS) is not None
    assert scheduling.chooser.choose(ask, made).targets[0].score == 0.0
    assert any("peakPrefillThroughput" in note for note in scheduling.notes) is False


def test_a_calibrated_speed_is_said_to_be_not_in_force() -> None:
    plugins = [{"type": NAME, "parameters": {"peakPrefillThroughput": 33821}}]

    notes = load_scheduling({"plugins": plugins}).notes

    assert [note for note in notes if "not in force: parameters peakPrefillThroughput" in note]
