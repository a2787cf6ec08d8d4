"""What simulations say of ours beside other policies: ratios, requirements, and seeds needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from bench.tests.runs import a_run

from inferway_bench.rows import Key, Row, Value
from inferway_bench.simulate.beside_others import (
    OF_FLEETS,
    OF_POLICIES,
    Requirement,
    goals,
    losses,
    with_ratios,
)
from inferway_bench.simulate.report import POLICIES_FLEET, SIMULATE
from inferway_bench.spread import Interval

P90 = {
    "round-robin": 3.0, "cache-aware": 1.6, "llm-d-default": 1.8, "kv-aware": 1.05,
    "expected-ttft": 1.0, "oracle": 0.8,
}  # fmt: skip


def row(policy: str, ttft: Sequence[float], *, trace: str = "mooncake", gateways: int = 1) -> Row:
    """One workload at 75 %, a value for each seed."""
    keys: dict[str, Key] = {
        "trace": trace, "engines": 8, "gateways": gateways, "load": "75%", "policy": policy,
    }  # fmt: skip
    same = [1.0] * len(ttft)
    values: dict[str, Value] = {
        "rate": 3.0, "ttft": list(ttft), "ttft_p50": same, "ttft_p90": list(ttft),
        "ttft_p99": same, "itl": same, "cached": [25.0] * len(ttft), "cpu_seconds": same,
        "cpu_us": same,
    }  # fmt: skip
    return Row("simulations", keys, values, is_ours=policy == "expected-ttft")


def rows(*, trace: str = "mooncake", gateways: int = 1, ours: float = 1.0) -> list[Row]:
    return [
        row(name, (value, 2 * value), trace=trace, gateways=gateways)
        for name, value in {**P90, "expected-ttft": ours}.items()
    ]


def seeds(*pairs: tuple[float, float]) -> dict[str, object]:
    """Ours and round-robin's, seed by seed -> what is said of round-robin."""
    ours, theirs = zip(*pairs, strict=True)
    _, other = with_ratios([row("expected-ttft", ours), row("round-robin", theirs)])
    return dict(other.values)


def goals_of(requirements: Sequence[Requirement], found: Sequence[Row]) -> list[bool]:
    return [g.is_met for g in goals(requirements, a_run("policies", list(found)))]


def test_the_best_of_each_kind_is_what_ours_is_judged_by() -> None:
    blind, told = goals(OF_FLEETS, a_run("policies-fleet", rows(gateways=4)))

    assert (blind.asked, blind.found, blind.is_met) == ("≥ 1.5", "1.60", True)
    assert (told.asked, told.found, told.is_met) == ("≥ 1.1", "1.05", False)


@pytest.mark.parametrize(("gateways", "trace"), [(1, "mooncake"), (4, "mooncake@8388608")])
def test_nothing_is_asked_of_one_gateway_or_of_caches_that_never_evict(
    gateways: int, trace: str
) -> None:
    assert goals_of(OF_FLEETS, rows(gateways=gateways, trace=trace)) == []


def test_a_goal_that_is_missed_is_said_to_be() -> None:
    assert goals_of(OF_POLICIES, rows(ours=1.34)) == [True, True]
    assert goals_of(OF_POLICIES, rows(ours=1.36)) == [False, True]


def test_whoever_is_ahead_is_named() -> None:
    found = [row("expected-ttft", (1.2, 2.4)), row("round-robin", (1, 2)), row("oracle", (2, 4))]

    assert losses(a_run("policies", found)) == [
        "mooncake, gateways: 1, load: 75%: the mean TTFT of expected-ttft is 1.200 (1.200 to "
        "1.200) times that of round-robin"
    ]


def test_the_page_says_where_events_pay() -> None:
    text = POLICIES_FLEET.markdown(a_run("policies-fleet", list(with_ratios(rows()))))

    assert "at 75% of the rate, gateways: 1" in text
    assert "| round-robin | 3.00 |" in text


# how many seeds show a difference


def test_seeds_are_pairs() -> None:
    found = seeds((500, 600), (1_500, 1_620), (900, 980), (700, 800), *[(1, 101)] * 6)

    assert found["difference"] == Interval(-100.0, -106.0, -94.0)
    assert found["few"] == "-108 to -92"
    assert found["needed"] == "2"  # it is far off zero, and one seed has no interval


def test_it_says_how_many_seeds_it_takes() -> None:
    noisy = [100, -80] * 30

    found = seeds(*((1_000, 1_000 + less) for less in [*noisy, *([50] * 40)]))

    assert found["needed"] == "31"  # (1.96 * 72.8 / 26) ** 2


def test_no_number_of_seeds_shows_what_is_not_there() -> None:
    assert seeds(*[(1.0, 1.1), (1.1, 1.0)] * 5)["needed"] == "none"


def test_few_seeds_say_nothing_of_seeds() -> None:
    assert "needed" not in seeds((1.0, 1.1), (1.1, 1.0))


def test_the_table_of_many_seeds_has_the_difference() -> None:
    both = [row("expected-ttft", [500.0] * 10), row("round-robin", [600.0] * 10)]

    facts = {"most_engines": 8, "most_requests": 100}

    text = SIMULATE.markdown(a_run("simulate --seeds", list(with_ratios(both)), facts=facts))

    assert "-100 (-100 to -100) | -100 to -100 | 2 |" in text
