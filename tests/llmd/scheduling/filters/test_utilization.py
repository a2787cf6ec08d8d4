"""llm-d's own tables (llm-d-router ebab687, filter/utilization, filter/sloheadroomtier)."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.scheduling.tables import candidates, request

from inferway.errors import ConfigError
from inferway.model import Candidates
from inferway.openai_api.requests import CompletionRequest
from inferway.scheduling.columns import EXPECTED_TPOT_MS, EXPECTED_TTFT_MS
from inferway.scheduling.load import load_scheduling
from inferway_llmd.scheduling.filters.slo_headroom_tier import SloHeadroomTier
from inferway_llmd.scheduling.filters.utilization import TYPE, UtilizationFilter

STREAM = CompletionRequest(model="m", prompt="", stream=True)


def cap(metric: str, most: float) -> dict[str, object]:
    return {"metric": metric, "maxValue": most}


@pytest.mark.parametrize(
    ("conditions", "columns", "fallback", "kept"),
    [
        ([cap("active-requests", 2)], {"in_flight": [1, 2, 3]}, False, [0, 1]),
        ([cap("active-requests", 1)], {"in_flight": [0, 2]}, False, [0]),
        ([cap("running-requests", 4)], {"running": [4, 5]}, False, [0]),
        ([cap("waiting-queue", 0)], {"waiting": [0, 3]}, False, [0]),
        ([cap("kv-cache-utilization", 0.8)], {"kv_usage": [0.5, 0.9]}, False, [0]),
        (
            [cap("running-requests", 40), cap("waiting-queue", 0)],
            {"running": [10, 41, 10], "waiting": [0, 0, 1]},
            False,
            [0],
        ),
        (
            [cap("active-requests", 10), cap("kv-cache-utilization", 0.8)],
            {"in_flight": [1, 1, 11], "kv_usage": [0.5, 0.9, 0.5]},
            False,
            [0],
        ),
        ([cap("active-requests", 1)], {"in_flight": [2, 3]}, False, []),
        ([cap("active-requests", 1)], {"in_flight": [2, 3]}, True, [0, 1]),
    ],
)
def test_endpoints_within_all_limits_are_kept(
    conditions: list[Any], columns: dict[str, Any], fallback: bool, kept: list[int]
) -> None:
    given = {"conditions": conditions, "fallbackOnEmpty": fallback}
    made = msgspec.convert(given, UtilizationFilter)

    assert made.keep(request(), candidates(**columns)).nonzero()[0].tolist() == kept


@pytest.mark.parametrize(
    "parameters",
    [
        {"conditions": []},
        {"conditions": [{"maxValue": 1}]},
        {"conditions": [cap("unknown", 1)]},
        {"conditions": [{"metric": "active-requests"}]},
        {"conditions": [cap("active-requests", -1)]},
        {"conditions": [cap("kv-cache-utilization", 80)]},
    ],
)
def test_limits_that_cannot_hold_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="parameters of utilization-filter: "):
        load_scheduling({"plugins": [{"type": TYPE.name, "parameters": parameters}]})


def headrooms(*endpoints: tuple[float, float] | None) -> Candidates:
    """What is expected, by how much less that is than 1000 and 100 ms."""
    made, nothing = candidates(len(endpoints)), (float("nan"), float("nan"))
    given = [(1000 - e[0], 100 - e[1]) if e else nothing for e in endpoints]
    made.add(EXPECTED_TTFT_MS, np.array([ttft for ttft, _ in given]))
    made.add(EXPECTED_TPOT_MS, np.array([tpot for _, tpot in given]))
    return made


@pytest.mark.parametrize(
    ("epsilon", "endpoints", "kept"),
    [
        (0.01, [(10, 5)], [0]),
        (0.01, [None, None], [0, 1]),
        (0.0, [(100, 50), (200, 80)], [0, 1]),
        (0.0, [(-100, -50), (-200, -80)], [0, 1]),
        (0.0, [(100, 50), (200, 80), (-100, -50)], [0, 1]),
        (1.0, [(100, 50), (-100, -50)], [1]),
        (1.0, [(100, 50), None], [1]),
        (0.0, [(100, -1), (0, 0)], [1]),
    ],
)
def test_endpoints_in_time_are_a_tier(
    epsilon: float, endpoints: list[tuple[float, float] | None], kept: list[int]
) -> None:
    ask = request(body=STREAM, ttft_ms=1000.0, tpot_ms=100.0)

    found = SloHeadroomTier(epsilon).keep(ask, headrooms(*endpoints))

    assert found.nonzero()[0].tolist() == kept


def test_what_is_not_asked_does_not_count() -> None:
    only_the_first_token = request(body=STREAM, ttft_ms=1000.0)

    found = SloHeadroomTier(0.0).keep(only_the_first_token, headrooms((100, -50), (-100, -50)))

    assert found.tolist() == [True, False]
