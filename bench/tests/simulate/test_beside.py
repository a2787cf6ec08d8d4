"""What simulations say of ours beside other policies, beside one gateway and beside the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from bench.tests.runs import a_run, unseen

from inferway_bench.rows import Key, Row, Run, Value
from inferway_bench.simulate.report import (
    POLICIES_FLEET,
    POLICIES_GATEWAYS,
    losses,
    with_ratios,
)
from inferway_bench.simulate.run import SimulatePlan
from inferway_bench.spread import Interval

OURS = "expected-ttft"
P90 = {
    "round-robin": 3.0, "cache-aware": 1.6, "llm-d-default": 1.8, "kv-aware": 1.05, OURS: 1.0,
    "oracle": 0.8,
}  # fmt: skip
SMALL = SimulatePlan(
    engines=(3,), gateways=(1, 2), requests=200, rate=20.0, seeds=2, processes=1,
    policy=(OURS, f"{OURS}+workers", "oracle"),
)  # fmt: skip


def row(policy: str, ttft: Sequence[float], *, trace: str = "mooncake", gateways: int = 1) -> Row:
    """One workload at 75 %, a value for each seed."""
    keys: dict[str, Key] = {
        "trace": trace, "engines": 8, "gateways": gateways, "load": "75%", "policy": policy,
    }  # fmt: skip
    values: dict[str, Value] = {
        "ttft": list(ttft), "ttft_p90": list(ttft), "cached": [25.0] * len(ttft),
    }  # fmt: skip
    return Row("simulations", keys, values, is_ours=policy == OURS)


def run_of(*rows: Row) -> Run:
    return a_run("policies", list(with_ratios(rows)))


def all_policies(*, trace: str = "mooncake", gateways: int = 1, ours: float = 1.0) -> list[Row]:
    return [
        row(name, (value, 2 * value), trace=trace, gateways=gateways)
        for name, value in {**P90, OURS: ours}.items()
    ]


def sharing(shared: str, times: float, *, trace: str = "mooncake") -> list[Row]:
    """One gateway, and four that share, which take so many times as long."""
    return [
        row(OURS, (1.0, 3.0), trace=trace),
        row(f"{OURS}+{shared}", (times, 3.0 * times), trace=trace, gateways=4),
        row("oracle", (1.0, 3.0), trace=trace, gateways=4),
    ]


def test_whoever_is_ahead_is_named() -> None:
    rows = [row(OURS, (1.25, 2.5)), row("round-robin", (1, 2)), row("oracle", (2, 4))]

    assert losses({"ttft": "mean TTFT"}, run_of(*rows)) == [
        "mooncake, gateways: 1, load: 75%: the mean TTFT of round-robin is 0.800 (0.800 to 0.800) "
        "times ours"
    ]


def test_the_page_says_where_events_pay() -> None:
    text = POLICIES_FLEET.markdown(run_of(*all_policies()))

    assert "at 75% of the rate, gateways: 1" in text
    assert "| round-robin | 3.00 |" in text


def test_seeds_are_compared_with_the_same_seeds_of_one_gateway_and_of_the_oracle() -> None:
    one, shared, _ = with_ratios(sharing("workers", 1.5))

    assert "one_ratio" not in one.values
    assert shared.values["one_ratio"] == shared.values["oracle_ratio"] == Interval(1.5, 1.5, 1.5)


def test_without_one_gateway_and_the_oracle_nothing_is_compared() -> None:
    [only] = with_ratios([row(f"{OURS}+workers", (1.0, 3.0), gateways=4)])

    assert only.values.keys() == {"ttft", "ttft_p90", "cached"}


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
