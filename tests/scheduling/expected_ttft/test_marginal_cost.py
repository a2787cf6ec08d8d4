"""What a request costs all others."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.model import Column
from inferway.scheduling.expected_ttft.marginal_cost import BUSIEST, RATE_SECONDS, MarginalCost

BOTH = slice(0, 2)


@pytest.fixture
def marginal_cost() -> MarginalCost:
    marginal_cost = MarginalCost(answer_tokens=100.0, cached_share=0.5)
    marginal_cost.grow(2)
    return marginal_cost


def cost(
    marginal_cost: MarginalCost,
    *,
    now: float = 0.0,
    work: float = 100.0,
    backlog: float = 0.0,
    batch: float = 0.0,
    slowed: float = 0.0,
) -> Column:
    def both(value: float) -> Column:
        return np.full(2, value)

    return marginal_cost.cost(
        BOTH,
        now,
        work=both(work),
        tokens=both(work),
        backlog=both(backlog),
        batch=both(batch),
        slowed=both(slowed),
    )


def test_a_request_on_an_idle_fleet_costs_nobody_anything(marginal_cost: MarginalCost) -> None:
    assert cost(marginal_cost).tolist() == [0.0, 0.0]


def test_answers_that_are_being_written_stand_still_and_become_slower(
    marginal_cost: MarginalCost,
) -> None:
    assert cost(marginal_cost, batch=4.0, slowed=4 * 0.5).tolist() == [4 * (1 + 0.5)] * 2


def test_those_who_come_before_it_is_worked_off_wait_longer(marginal_cost: MarginalCost) -> None:
    marginal_cost.cached_share = 0.0
    marginal_cost.sent(0, 0.0, work=RATE_SECONDS * 500, new_tokens=0.0, tokens=1.0)
    marginal_cost.cached_share = 0.0  # r: one in RATE_SECONDS; b: a half

    found = cost(marginal_cost, work=100.0, backlog=300.0)

    assert found[0] == pytest.approx(100 * (300 + 50) / (RATE_SECONDS * 1000) / (1 - 0.5))
    assert found[1] == 0.0


def test_an_engine_is_never_believed_to_be_busy_for_good(marginal_cost: MarginalCost) -> None:
    marginal_cost.sent(0, 0.0, work=RATE_SECONDS * 5_000, new_tokens=0.0, tokens=1.0)
    marginal_cost.cached_share = 0.0

    assert cost(marginal_cost)[0] == pytest.approx(100 * 50 / (RATE_SECONDS * 1000) / (1 - BUSIEST))


def test_rates_fade(marginal_cost: MarginalCost) -> None:
    marginal_cost.sent(0, 0.0, work=0.0, new_tokens=0.0, tokens=1.0)

    assert cost(marginal_cost, now=10 * RATE_SECONDS)[0] < 1e-3 * cost(marginal_cost, now=0.0)[0]


def test_the_engine_with_less_new_text_loses_less_of_what_it_holds(
    marginal_cost: MarginalCost,
) -> None:
    marginal_cost.sent(0, 0.0, work=0.0, new_tokens=300.0, tokens=600.0)
    marginal_cost.sent(1, 0.0, work=0.0, new_tokens=100.0, tokens=200.0)

    first, second = cost(marginal_cost, now=1e6)  # rates have faded

    assert first / second == pytest.approx(3.0, rel=0.01)
    assert first + second == pytest.approx(2 * 100 * 0.5, rel=0.01)


def test_where_nothing_is_ever_used_again_storing_costs_nothing(
    marginal_cost: MarginalCost,
) -> None:
    for _ in range(5_000):
        marginal_cost.sent(0, 0.0, work=0.0, new_tokens=300.0, tokens=300.0)

    assert marginal_cost.cached_share == pytest.approx(0.0, abs=1e-3)
    assert cost(marginal_cost, now=1e6)[0] == pytest.approx(0.0, abs=0.1)
