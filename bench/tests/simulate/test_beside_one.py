"""What simulations say of several gateways beside one, and beside the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from bench.tests.runs import a_run, unseen

from inferway_bench.rows import Key, Row
from inferway_bench.simulate.beside_one import goals, with_one
from inferway_bench.simulate.plan import SimulatePlan
from inferway_bench.simulate.report import POLICIES_FLEET, POLICIES_GATEWAYS
from inferway_bench.spread import Interval

OURS = "expected-ttft"
SMALL = SimulatePlan(
    engines=(3,), gateways=(1, 2), requests=200, rate=20.0, seeds=2, processes=1,
    policy=(OURS, f"{OURS}+workers", "oracle"),
)  # fmt: skip


def row(policy: str, p90: Sequence[float], *, gateways: int = 4, trace: str = "mooncake") -> Row:
    keys: dict[str, Key] = {
        "trace": trace, "engines": 8, "gateways": gateways, "load": "75%", "policy": policy,
    }  # fmt: skip
    return Row("simulations", keys, {"ttft": [each / 2 for each in p90], "ttft_p90": list(p90)})


def rows(shared: str, times: float, *, trace: str = "mooncake") -> list[Row]:
    """One gateway, and four that share, which take so many times as long."""
    return [
        row(OURS, (1.0, 3.0), gateways=1, trace=trace),
        row(f"{OURS}+{shared}", (times, 3.0 * times), trace=trace),
        row("oracle", (1.0, 3.0), trace=trace),
    ]


def judged(*found: Row) -> list[tuple[str, bool]]:
    run = a_run("policies-fleet", list(with_one(found)))
    return [(goal.found, goal.is_met) for goal in goals(run)]


def test_seeds_are_compared_with_the_same_seeds_of_one_gateway_and_of_the_oracle() -> None:
    one, shared, _ = with_one(rows("workers", 1.5))

    assert one.values.keys() == {"ttft", "ttft_p90"}
    assert shared.values["one_ratio"] == shared.values["oracle_ratio"] == Interval(1.5, 1.5, 1.5)


def test_without_one_gateway_and_the_oracle_nothing_is_compared() -> None:
    [only] = with_one([row(f"{OURS}+workers", (1.0, 3.0))])

    assert only.values["one_ratio"] is None
    assert only.values["oracle_ratio"] is None
    assert judged(only) == []


@pytest.mark.parametrize(
    ("shared", "times", "is_met"),
    [("workers", 1.005, True), ("workers", 1.02, False), ("peers@20", 1.04, True),
     ("peers@50", 1.06, False)],
)  # fmt: skip
def test_workers_must_be_as_good_as_one_and_gateways_nearly_as_the_oracle(
    shared: str, times: float, is_met: bool
) -> None:
    assert judged(*rows(shared, times)) == [(f"{times:.3f}", is_met)]


def test_the_worst_of_all_cases_counts() -> None:
    found = [*rows("workers", 1.005), *rows("workers", 1.03, trace="azure@262144")]

    assert judged(*found) == [("1.030", False)]


def test_nothing_is_asked_of_gateways_that_do_not_tell_their_prompts_or_have_short_ones() -> None:
    assert judged(*rows("load@20", 1.2)) == []
    assert judged(*rows("peers@20", 1.2, trace="azure@262144")) == []


def test_a_run_whose_gateways_share_is_stored_apart_and_shows_both_ratios() -> None:
    run = POLICIES_FLEET.run(SMALL, unseen)

    assert run.benchmark == POLICIES_GATEWAYS.name
    found = [(r.keys["gateways"], r.keys["policy"]) for r in run.select("simulations")]
    assert found == [(1, OURS), (1, "oracle"), (2, OURS), (2, f"{OURS}+workers"), (2, "oracle")]
    text = POLICIES_GATEWAYS.markdown(run)
    assert "with the same policy (95 %), gateways: 2" in text
    assert "Mean TTFT divided by the oracle's (95 %), gateways: 2" in text


def test_a_run_whose_gateways_are_alone_is_that_of_the_fleet() -> None:
    plan = msgspec.structs.replace(SMALL, gateways=(1,), policy=(OURS,), seeds=1)

    assert POLICIES_FLEET.run(plan, unseen).benchmark == POLICIES_FLEET.name
