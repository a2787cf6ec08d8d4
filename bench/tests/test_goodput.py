"""How many requests are answered within limits, and the bound on it."""

from __future__ import annotations

import numpy as np
import pytest
from bench.tests.runs import a_run

from inferway_bench.policies.bound import bound
from inferway_bench.policies.catalog import HELD, ORACLE, OURS, policy_named
from inferway_bench.policies.outcome import Limits, Outcome
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import simulate
from inferway_bench.rows import Key, Row
from inferway_bench.simulate.report import GoodputPlan, goodput_losses
from inferway_bench.simulate.run import Setting

PLAN = GoodputPlan(requests=1_500)
SETTING = Setting("mooncake", 8, 1)
CAPACITY = 6.7  # requests a second that the greedy oracle can do of the first 4,000


def outcome_of(policy: str, load: float) -> tuple[Workload, float, Outcome]:
    workload, fleet = PLAN.workload("mooncake", 1), PLAN.fleet(SETTING)
    rate = load * CAPACITY
    return workload, rate, simulate(workload, rate, fleet, policy_named(policy), 1)


def goodput(policy: str, load: float) -> tuple[float, float]:
    """The share of requests within the limits, and the mean TTFT."""
    workload, rate, outcome = outcome_of(policy, load)
    figures = outcome.figures(workload, rate, PLAN.warm_up)
    return figures.good, figures.ttft


def test_requests_that_wait_at_the_gateway_are_answered_in_time_where_greedy_is_not() -> None:
    held, _ = goodput(HELD, 1.3)
    greedy, _ = goodput(ORACLE, 1.3)

    assert held > 50.0
    assert held >= 1.15 * greedy


def test_below_capacity_those_that_could_wait_lose_no_time() -> None:
    _, held = goodput(HELD, 0.75)
    _, ours = goodput(OURS, 0.75)

    assert held <= 1.01 * ours


@pytest.mark.parametrize("load", [0.75, 1.1])
@pytest.mark.parametrize("policy", ["round-robin", ORACLE, HELD])
def test_no_policy_beats_the_bound(policy: str, load: float) -> None:
    workload, rate, outcome = outcome_of(policy, load)
    figures = outcome.figures(workload, rate, PLAN.warm_up)

    least, most = bound(
        workload, PLAN.fleet(SETTING), outcome, PLAN.warm_up * len(workload.requests) / rate
    )

    assert figures.ttft >= least * 1_000
    assert figures.good_rate <= most * 1.001


def test_a_request_is_good_if_its_first_token_and_its_gaps_are_within_the_limits() -> None:
    requests = [
        SimRequest(blocks=(), prompt_tokens=10, output_tokens=11, session=n, start=float(n))
        for n in range(4)
    ]
    outcome = Outcome.of(4, Limits(ttft=1.0, itl=0.1))
    outcome.num_engines = 1
    outcome.gaps = (np.zeros(0),) * 3
    outcome.arrived[:] = range(4)
    outcome.ttft[:] = [1.0, 1.1, 0.5, 0.5]
    outcome.latency[:] = [1.9, 2.0, 1.4, 1.6]  # ten gaps, those of the last one of 0.11 s

    figures = outcome.figures(Workload("by hand", "", 16, requests), 1.0)

    assert figures.good == 50.0
    assert figures.good_rate == pytest.approx(0.5)


def test_a_policy_that_keeps_the_limits_more_often_or_is_sooner_below_capacity_is_a_loss() -> None:
    def row(policy: str, load: str, good_rate: float, ttft: float) -> Row:
        keys: dict[str, Key] = {
            "trace": "t",
            "engines": 8,
            "gateways": 1,
            "load": load,
            "policy": policy,
        }
        return Row("simulations", keys, {"good_rate": [good_rate] * 2, "ttft": [ttft] * 2}, False)

    run = a_run(
        "policies-goodput",
        [
            *(row(HELD, "75%", 5.0, 100.0), row(ORACLE, "75%", 5.0, 90.0)),
            *(row(HELD, "110%", 5.0, 100.0), row(ORACLE, "110%", 6.0, 90.0)),
        ],
    )

    assert goodput_losses(run) == [
        "t, gateways: 1, load: 75%: the mean TTFT of oracle is 0.900 (0.900 to 0.900) times ours",
        "t, gateways: 1, load: 110%: oracle keeps the limits for 1.200 (1.200 to 1.200) times as "
        "many requests",
    ]
