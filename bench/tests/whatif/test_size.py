"""The fewest engines that hold an SLO."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_bench.processes import BenchError
from inferway_bench.whatif.figures import ReplayFigures, holds, parse_slo, sized


def told(p90: float) -> ReplayFigures:
    return ReplayFigures(
        ttft_p50=p90 / 2, ttft_p90=p90, ttft_p99=p90 * 2, ttft=p90, cached=50.0, busy=50.0
    )


@given(st.integers(1, 300), st.integers(1, 300))
def test_the_fewest_engines_are_found_from_wherever_one_begins(fewest: int, first: int) -> None:
    asked: list[int] = []

    def ask(numbers: Sequence[int]) -> dict[int, list[ReplayFigures]]:
        asked.extend(numbers)
        return {number: [told(1_000.0 * fewest / number)] for number in numbers}

    found = sized(parse_slo("p90<1s"), first, ask, {})

    assert found.fewest == fewest
    assert len(asked) == len(set(asked)) <= 25
    assert all(holds(found.runs[n], parse_slo("p90<1s"), {}) == (n >= fewest) for n in found.runs)


def test_what_no_number_of_engines_holds_is_given_up_soon() -> None:
    def ask(numbers: Sequence[int]) -> dict[int, list[ReplayFigures]]:
        assert max(numbers) <= 16
        return {number: [told(2_000.0)] for number in numbers}

    assert sized(parse_slo("p90<1s"), 4, ask, {}).fewest is None


def test_every_limit_must_hold_with_the_margin() -> None:
    limits = parse_slo("p50<500ms, p99<=2.5s")

    assert holds([told(1_000.0)], limits, {})
    assert not holds([told(1_000.0)], limits, {"ttft_p99": 1.3})
    assert not holds([told(1_100.0)], limits, {})


@pytest.mark.parametrize("text", ["", "p90", "p90<1", "p95<1s", "p90>1s", "p90<1s;p50<1s", "x"])
def test_an_slo_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BenchError, match="as p90<1s,p99<3s"):
        parse_slo(text)
