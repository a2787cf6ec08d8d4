"""llm-d's own tables (llm-d-router ebab687, filter/endpointattribute, scorer/endpointattribute)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.scheduling.plugin_types import TYPES
from tests.scheduling.tables import candidates, request

from inferway.errors import ConfigError
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.plugin import Filter, Scorer
from inferway.scheduling.registry import Building

NAN = float("nan")  # an endpoint without the attribute


def built(name: str, parameters: dict[str, Any]) -> object:
    kind = TYPES[name]
    return kind.build(msgspec.convert(parameters, kind.parameters), Building())


@pytest.mark.parametrize(
    ("operator", "more", "values", "kept"),
    [
        ("LessThan", {}, [5, 10, 15], [0]),
        ("LessThanOrEqual", {}, [5, 10, 15], [0, 1]),
        ("GreaterThan", {}, [5, 10, 15], [2]),
        ("GreaterThanOrEqual", {}, [5, 10, 15], [1, 2]),
        ("Equal", {}, [5, 10], [1]),
        ("NotEqual", {}, [5, 10], [0]),
        ("LessThan", {"onMissing": "Pass"}, [15, NAN], [1]),
        ("LessThan", {"onMissing": "Fail"}, [5, NAN], [0]),
        ("NotEqual", {"onMissing": "Fail"}, [5, NAN], [0]),
        ("LessThan", {}, [15, 20], []),
        ("LessThan", {"fallbackOnEmpty": True}, [15, 20], [0, 1]),
        ("LessThan", {"fallbackOnEmpty": True}, [5, 20], [0]),
    ],
)
def test_the_filter_compares(
    operator: str, more: dict[str, Any], values: list[float], kept: list[int]
) -> None:
    threshold = {"type": "threshold", "threshold": {"operator": operator, "value": 10}}
    given = {"attribute": "num_requests_running", "algorithm": threshold, **more}
    made = built("endpoint-attribute-filter", given)
    assert isinstance(made, Filter)

    assert made.keep(request(), candidates(running=values)).nonzero()[0].tolist() == kept


LOWER, HIGHER = "linear_lower_is_better", "linear_higher_is_better"
ZERO_TO_TEN = {"fixedRange": {"min": 0, "max": 10}}


@pytest.mark.parametrize(
    ("algorithm", "normalization", "values", "scores"),
    [
        (LOWER, {}, [10, 5, 0], [0.0, 0.5, 1.0]),
        (HIGHER, {"adaptiveRange": {}}, [10, 5, 0], [1.0, 0.5, 0.0]),
        (LOWER, {}, [7, 7], [1.0, 1.0]),
        (LOWER, {}, [10, NAN, 0], [0.0, 0.0, 1.0]),
        (LOWER, {}, [NAN, NAN], [0.0, 0.0]),
        (LOWER, ZERO_TO_TEN, [10, 5, 0], [0.0, 0.5, 1.0]),
        (HIGHER, ZERO_TO_TEN, [10, 5, 0], [1.0, 0.5, 0.0]),
        (LOWER, ZERO_TO_TEN, [7, 7], [0.3, 0.3]),
        (LOWER, ZERO_TO_TEN, [15, -5], [0.0, 1.0]),
        (HIGHER, ZERO_TO_TEN, [10, NAN], [1.0, 0.0]),
    ],
)
def test_the_scorer_places(
    algorithm: str, normalization: dict[str, Any], values: list[float], scores: list[float]
) -> None:
    given = {
        "attributeKey": "WaitingQueueSize",
        "algorithm": {"type": algorithm, "normalization": normalization},
    }
    made = built("endpoint-attribute-scorer", given)
    assert isinstance(made, Scorer)

    found = made.score(request(), candidates(waiting=values))

    assert found.tolist() == pytest.approx(scores)


def test_attributes_of_other_producers_are_read_of_no_endpoint() -> None:
    given = {
        "attributeKey": "GPUUtilization",
        "producer": "dcgm-extractor",
        "algorithm": {"type": LOWER},
    }
    made = built("endpoint-attribute-scorer", given)
    assert isinstance(made, Scorer)

    assert made.score(request(), candidates(2)).tolist() == [0.0, 0.0]


LESS = {"type": "threshold", "threshold": {"operator": "LessThan", "value": 10}}


@pytest.mark.parametrize(
    ("kind", "parameters", "says"),
    [
        ("filter", {"algorithm": LESS}, "missing required field `attribute`"),
        (
            "filter",
            {"attribute": "GPUUtilization/dcgm-extractor", "algorithm": LESS},
            "producer 'dcgm-extractor' and attribute 'GPUUtilization'?",
        ),
        ("filter", {"attribute": "queue_depth", "algorithm": LESS}, "known: KVCacheUsagePercent"),
        (
            "filter",
            {"attribute": "num_requests_running", "onMissing": "Maybe", "algorithm": LESS},
            "'Maybe'",
        ),
        (
            "filter",
            {"attribute": "num_requests_running", "algorithm": {"type": "percentile"}},
            "'percentile'",
        ),
        (
            "filter",
            {"attribute": "num_requests_running", "algorithm": {"type": "threshold"}},
            "`threshold`",
        ),
        ("scorer", {"algorithm": {"type": LOWER}}, "missing required field `attributeKey`"),
        (
            "scorer",
            {"attributeKey": "WaitingQueueSize", "algorithm": {"type": "log_lower_is_better"}},
            "'log_lower_is_better'",
        ),
        (
            "scorer",
            {
                "attributeKey": "WaitingQueueSize",
                "algorithm": {
                    "type": LOWER,
                    "normalization": {**ZERO_TO_TEN, "adaptiveRange": {}},
                },
            },
            "fixedRange and adaptiveRange; expected one",
        ),
        (
            "scorer",
            {
                "attributeKey": "WaitingQueueSize",
                "algorithm": {
                    "type": LOWER,
                    "normalization": {"fixedRange": {"min": 1, "max": 1}},
                },
            },
            "expected min < max",
        ),
    ],
)
def test_what_cannot_hold_is_refused(kind: str, parameters: dict[str, Any], says: str) -> None:
    name = f"endpoint-attribute-{kind}"

    with pytest.raises(ConfigError) as caught:
        load_scheduling({"plugins": [{"type": name, "parameters": parameters}]})

    assert says in str(caught.value)
