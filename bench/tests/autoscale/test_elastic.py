"""A simulated fleet that grows and shrinks, and what says how large it is to be."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_bench.policies.catalog import OURS, policy_named
from inferway_bench.policies.chats import ChatSpec, chats
from inferway_bench.policies.daily import daily
from inferway_bench.policies.elastic import ElasticSimulation
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.gateway import Gateway
from inferway_bench.policies.holders import Holders
from inferway_bench.policies.scaling import (
    Elastic,
    Foreseen,
    Forever,
    HorizontalAutoscaler,
    Signal,
)
from inferway_bench.policies.simulate import FleetSpec, simulate

LOADED = chats(3, ChatSpec(num_requests=600, think_seconds=1.0, most_tokens=8_000))
FLEET = FleetSpec(
    num_engines=4,
    num_slow=0,
    engine=EngineSpec(max_batched_tokens=2_000, cache_tokens=150_000),
)
ELASTIC = Elastic(most=4, start_seconds=10.0, sync_seconds=5.0)


def up_and_down(seconds: float) -> Callable[[Gateway], Signal]:
    return lambda _: Foreseen([1, 4, 2, 4, 1, 3] * 20, seconds, 0.0)


def test_a_fleet_that_does_not_change_is_as_any_other() -> None:
    simulation = ElasticSimulation(
        LOADED, 4.0, FLEET, policy_named(OURS), 1, ELASTIC, 4, lambda _: Forever(4)
    )
    found, fixed = simulation.run(), simulate(LOADED, 4.0, FLEET, policy_named(OURS), 1)

    assert np.array_equal(found.ttft, fixed.ttft)
    assert {size.paid for size in simulation.sizes} == {4}


@pytest.mark.parametrize("hand_over", [True, False])
@pytest.mark.parametrize("least_worth", [True, False])
def test_every_request_ends_once_however_engines_come_and_go(
    hand_over: bool, least_worth: bool
) -> None:
    elastic = msgspec.structs.replace(ELASTIC, hand_over=hand_over, least_worth=least_worth)
    simulation = ElasticSimulation(
        LOADED, 4.0, FLEET, policy_named(OURS), 1, elastic, 2, up_and_down(15.0)
    )
    outcome = simulation.run()

    assert set(outcome.num_ended.tolist()) == {1}
    assert simulation.num_started > 3
    assert (simulation.handed_over > 0) == hand_over
    sizes = simulation.sizes
    assert {size.serving for size in sizes} >= {1, 2, 4}
    assert all(size.serving <= size.paid <= 4 for size in sizes)


def test_an_engine_serves_only_once_it_has_started() -> None:
    simulation = ElasticSimulation(
        LOADED, 4.0, FLEET, policy_named(OURS), 1, ELASTIC, 1, lambda _: Forever(3)
    )
    simulation.run()

    first = simulation.sizes[:3]
    assert [(size.at, size.serving, size.paid) for size in first] == [
        (5.0, 1, 3),
        (10.0, 1, 3),
        (15.0, 3, 3),
    ]


def test_sessions_find_more_where_engines_that_go_hand_over() -> None:
    def cached(hand_over: bool) -> int:
        elastic = msgspec.structs.replace(ELASTIC, hand_over=hand_over, least_worth=False)
        simulation = ElasticSimulation(
            LOADED, 4.0, FLEET, policy_named(OURS), 1, elastic, 2, up_and_down(15.0)
        )
        return int(simulation.run().cached_tokens.sum())

    assert cached(hand_over=True) > 1.01 * cached(hand_over=False)


# how many there are to be


def replicas(rule: HorizontalAutoscaler, *wanted: float | None, current: int = 4) -> list[int]:
    found = []
    for number, each in enumerate(wanted):
        current = rule.replicas(number * 15.0, current, each)
        found.append(current)
    return found


def test_more_come_at_once_and_go_when_they_were_too_many_for_long() -> None:
    rule = HorizontalAutoscaler(Elastic(down_seconds=45.0))

    assert replicas(rule, 4.0, 6.2, 3.0, 3.0, 3.0, 3.0, 3.0) == [4, 7, 7, 7, 7, 3, 3]


def test_a_small_difference_changes_nothing() -> None:
    rule = HorizontalAutoscaler(Elastic(down_seconds=0.0))

    assert replicas(rule, 4.3, 3.7, None, 4.5, 3.0) == [4, 4, 4, 5, 3]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_there_are_never_more_or_fewer_than_may_be(wanted: list[float]) -> None:
    rule = HorizontalAutoscaler(Elastic(least=2, most=9))

    assert all(2 <= each <= 9 for each in replicas(rule, *wanted))


def test_who_knows_the_load_starts_engines_before_they_are_needed() -> None:
    foreseen = Foreseen([1, 3, 2], 100.0, 60.0)

    said = [foreseen.wanted(at, None, 0) for at in (0, 39, 41, 150, 230, 900)]  # type: ignore[arg-type]
    assert said == [1, 1, 3, 3, 2, 2]


# the day


def test_a_day_has_all_requests_most_of_them_in_its_middle() -> None:
    even, day = LOADED.starts(4.0, 1), daily(LOADED, 0.6).starts(4.0, 1)

    assert len(even) == len(day)
    assert (np.diff(day) >= 0).all()
    end = len(LOADED.requests) / 4.0
    middle = ((day > end * 0.375) & (day < end * 0.625)).mean()
    before = ((even > end * 0.375) & (even < end * 0.625)).mean()
    assert middle > before * 1.3
    assert day.max() <= end


def test_an_engine_that_is_no_more_holds_nothing() -> None:
    holders = Holders()
    holders.add(0, [1, 2])
    holders.add(1, [1])
    holders.forget(0)

    assert holders.match([1, 2]) == {1: 1}
