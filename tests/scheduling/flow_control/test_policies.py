"""llm-d's own tables (llm-d-router ebab687, flowcontrol): orderings, fairness, usage limits, and
the concurrency detector."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest
from tests.scheduling.plugin_types import TYPES
from tests.scheduling.tables import candidates, request

from inferway.errors import ConfigError
from inferway.model import SchedulingResult
from inferway.openai_api.usage import Usage
from inferway.scheduling.admitters import SATURATED
from inferway.scheduling.flow_control.policies import (
    Arrival,
    EarliestDeadline,
    FirstCome,
    LeastAttainedService,
    Ordering,
    ProgramAwareParameters,
    SloDeadline,
)
from inferway.scheduling.flow_control.usage_limits import (
    PriorityHoldback,
    SoftReflectiveCeiling,
    StaticLimit,
)
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.plugin import RequestOutcome
from inferway.scheduling.prefix_source import PrecisePrefixSource
from inferway.scheduling.registry import Building
from inferway_llmd.scheduling.concurrency import ConcurrencyDetector
from inferway_llmd.scheduling.producers.inflight_load import InflightLoad, token_column


def arrival(came: float = 0.0, deadline: float = inf, ttft: float | None = None) -> Arrival:
    return Arrival(came, deadline, ttft)


@pytest.mark.parametrize(
    ("ordering", "first", "second"),
    [
        (EarliestDeadline(), arrival(1.0, 10.0), arrival(0.0, 20.0)),
        (EarliestDeadline(), arrival(5.0, 30.0), arrival(0.0, inf)),
        (SloDeadline(), arrival(1.0, ttft=0.1), arrival(0.0, ttft=2.0)),
        (SloDeadline(), arrival(9.0, ttft=60.0), arrival(0.0)),
    ],
)
def test_the_first_goes_first(ordering: Ordering, first: Arrival, second: Arrival) -> None:
    assert ordering.rank(first) < ordering.rank(second)


@pytest.mark.parametrize("ordering", [FirstCome(), EarliestDeadline(), SloDeadline()])
def test_equals_go_in_the_order_in_which_they_came(ordering: Ordering) -> None:
    assert ordering.rank(arrival(0.0)) == ordering.rank(arrival(1.0))


# fairness/program-aware/strategy_las_test.go


def las(**parameters: float) -> LeastAttainedService:
    given = {"lasWeightService": 1.0, "lasWeightHeadWait": 0.0, "lasHalfLifeSeconds": 0.0}
    return LeastAttainedService(msgspec.convert({**given, **parameters}, ProgramAwareParameters))


def test_who_has_had_less_goes_first() -> None:
    policy = las()
    policy.served("alpha", 1000, 0.0)
    policy.served("beta", 10, 0.0)

    assert policy.next_flow({"alpha": 0.0, "beta": 0.0}, 0.0) == "beta"


def test_who_has_waited_longer_goes_first_if_they_have_had_the_same() -> None:
    policy = las(lasWeightHeadWait=1.0)

    assert policy.next_flow({"alpha": 9.5, "beta": 9.95}, 10.0) == "alpha"


def test_what_was_had_long_ago_counts_for_little() -> None:
    policy = las(lasHalfLifeSeconds=1.0)
    policy.served("alpha", 1000, 0.0)
    policy.served("beta", 10, 10.0)

    assert policy.next_flow({"alpha": 10.0, "beta": 10.0}, 10.0) == "alpha"
    assert policy.service("beta", 11.0) == pytest.approx(5.0)


def test_what_is_added_does_not_fade_with_what_was_there() -> None:
    policy = las(lasHalfLifeSeconds=1.0)
    policy.served("alpha", 100, 0.0)
    policy.served("alpha", 10, 1.0)

    assert policy.service("alpha", 1.0) == pytest.approx(60.0)


def test_without_a_half_life_nothing_fades() -> None:
    policy = las()
    policy.served("alpha", 100, 0.0)

    assert policy.service("alpha", 3600.0) == 100.0


def test_tokens_of_answers_count_twice_and_prompts_alone_if_no_usage_is_told() -> None:
    policy, ask = las(), request(tokens=100)
    table = candidates(1)
    for usage in (Usage(100, 50), None):
        follower = policy.follow(ask, table, SchedulingResult(()))
        follower.on_end(RequestOutcome("ok", 1.0, usage))

    assert policy.service(ask.tenant, 1.0) == 200 + 100


def test_tenants_that_are_gone_for_long_are_forgotten() -> None:
    policy = las(evictionTtlSeconds=60.0)
    policy.served("alpha", 100, 0.0)
    policy.served("beta", 100, 61.0)

    assert (policy.service("alpha", 61.0), policy.service("beta", 61.0)) == (0.0, 100.0)


# usagelimits


def test_one_ceiling_for_all() -> None:
    assert StaticLimit(threshold=0.8).ceilings(0.5, [1, 0]) == [0.8, 0.8]


def holdback(domain: str = "rank", **parameters: float) -> PriorityHoldback:
    given = {"minCeiling": 0.5, "domain": domain, **parameters}
    return msgspec.convert(given, PriorityHoldback)


@pytest.mark.parametrize(
    ("policy", "priorities", "ceilings"),
    [
        (holdback(), [10], [1.0]),
        (holdback("value"), [10], [1.0]),
        (holdback(maxCeiling=0.9), [10], [0.9]),
        (holdback(), [10, 0], [1.0, 0.5]),
        (holdback(), [100, 10, 0], [1.0, 0.75, 0.5]),
        (holdback("value"), [100, 10, 0], [1.0, 0.55, 0.5]),
        (holdback("value", minCeiling=0.3, maxCeiling=0.9), [10, 0, -10], [0.9, 0.6, 0.3]),
    ],
)
def test_lower_priorities_are_held_back_sooner(
    policy: PriorityHoldback, priorities: list[int], ceilings: list[float]
) -> None:
    assert policy.ceilings(0.5, priorities) == pytest.approx(ceilings)


@pytest.mark.parametrize("saturation", [0.0, 0.3, 0.5, 0.7, 0.99, 1.0, 1.5])
def test_the_highest_priority_is_never_gated(saturation: float) -> None:
    assert SoftReflectiveCeiling().ceilings(saturation, [100, 0, -50])[0] == 1.0
    assert SoftReflectiveCeiling().ceilings(saturation, [100]) == [1.0]


@pytest.mark.parametrize(
    ("saturation", "priorities", "calls"),
    [
        (0.3, [100, 0, -50], [[1.0, 1.0, 1.0]]),
        (1.0, [100, 0, -50], [[1.0, 0.0, 0.0]] * 2),
        (0.7, [100, 50, 0, -50], [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]),
        (0.7, [100, -50], [[1.0, 0.0], [1.0, 1.0]] * 3),
        (0.75, [100, -50], [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]] * 2),
    ],
)
def test_lower_priorities_go_on_the_more_seldom(
    saturation: float, priorities: list[int], calls: list[list[float]]
) -> None:
    policy = SoftReflectiveCeiling()

    assert [policy.ceilings(saturation, priorities) for _ in calls] == calls


# saturationdetector/concurrency


@pytest.mark.parametrize(
    ("in_flight", "saturation"),
    [([0], 0.0), ([5], 0.5), ([10], 1.0), ([10, 0], 0.5), ([15, 5], 1.0), ([15, 15], 1.5)],
)
def test_requests_in_flight_saturate(in_flight: list[float], saturation: float) -> None:
    loads = ConcurrencyDetector(10).loads(candidates(in_flight=in_flight))

    assert loads.mean() == pytest.approx(saturation)


@pytest.mark.parametrize(
    ("in_flight", "kept"), [([49], [True]), ([59], [True]), ([60, 0], [False, True])]
)
def test_as_a_filter_it_leaves_room_above_the_limit(
    in_flight: list[float], kept: list[bool]
) -> None:
    detector = ConcurrencyDetector(50, headroom=0.2)

    assert detector.keep(request(), candidates(in_flight=in_flight)).tolist() == kept


def test_tokens_count_alone_or_beside_requests() -> None:
    load = InflightLoad(token_column("p"), PrecisePrefixSource())
    table = candidates(2, in_flight=[4, 0])
    load.tokens(table)
    load.in_flight[:] = (100, 400)

    tokens = ConcurrencyDetector(None, 1000, load=load).loads(table)
    hybrid = ConcurrencyDetector(10, 1000, load=load).loads(table)

    assert tokens.tolist() == [0.1, 0.4]
    assert hybrid.tolist() == [0.4, 0.4]


def test_without_flow_control_it_refuses_sheddable_requests() -> None:
    full = candidates(in_flight=[10, 10])

    assert ConcurrencyDetector(10).refusal(request(priority=-1), full) == SATURATED
    assert ConcurrencyDetector(10).refusal(request(), full) is None
    assert ConcurrencyDetector(11).refusal(request(priority=-1), full) is None


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("concurrency-detector", {"maxConcurrency": "invalid_type"}),
        ("concurrency-detector", {"maxConcurrency": 0}),
        ("concurrency-detector", {"maxTokenConcurrency": 0}),
        ("concurrency-detector", {"headroom": -0.5}),
        ("concurrency-detector", {"concurrencyMode": "magic"}),
        ("static-usage-limit-policy", {"threshold": 0.0}),
        ("soft-reflective-ceiling-policy", {"threshold": 0.5}),
        *[
            ("priority-holdback-policy", parameters)
            for parameters in (
                {},
                {"minCeiling": 0.5, "shape": "sigmoid"},
                {"minCeiling": 0.5, "domain": "unknown"},
                {"minCeiling": -0.1},
                {"minCeiling": 1.0},
                {"minCeiling": 0.5, "maxCeiling": 0.0},
                {"minCeiling": 0.5, "maxCeiling": 1.1},
                {"minCeiling": 0.5, "maxCeiling": 0.5},
                {"minCeiling": 0.8, "maxCeiling": 0.5},
            )
        ],
    ],
)
def test_what_llm_d_refuses_is_refused(name: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"parameters of {name}: "):
        load_scheduling({"plugins": [{"type": name, "parameters": parameters}]})


def test_tokens_are_counted_by_a_producer_that_is_added() -> None:
    plugins = [{"type": "concurrency-detector", "parameters": {"concurrencyMode": "tokens"}}]
    scheduling = load_scheduling({"featureGates": ["flowControl"], "plugins": plugins})
    kind = TYPES["concurrency-detector"]

    assert any(isinstance(producer, InflightLoad) for producer in scheduling.producers)
    assert kind.build(kind.parameters(), Building()) == ConcurrencyDetector(100)
