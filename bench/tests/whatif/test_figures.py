"""What is said of figures, and how many engines hold a limit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_bench.processes import BenchError
from inferway_bench.whatif.figures import ReplayFigures, holds, parse_slo, sentence, sized

MEASURED = ReplayFigures(
    ttft_p50=300.0, ttft_p90=700.0, ttft_p99=1_500.0, ttft=400.0, cached=60.0, busy=40.0
)


def times(told: ReplayFigures, factor: float) -> ReplayFigures:
    names = ("ttft_p50", "ttft_p90", "ttft_p99", "ttft")
    return msgspec.structs.replace(told, **{name: getattr(told, name) * factor for name in names})


def seeds(told: ReplayFigures, scatter: float = 0.0) -> list[ReplayFigures]:
    return [times(told, 1 + scatter * at) for at in (-1, 0, 1)]


def test_a_difference_beyond_the_noise_is_said_in_numbers() -> None:
    said = sentence("round-robin", seeds(MEASURED), seeds(times(MEASURED, 3.0)), MEASURED)

    assert said.startswith("with round-robin p50 is 900 ms instead of 300 ms; p90 is 2.1 s instead")


@given(st.floats(0.7, 1.3), st.floats(0.0, 0.2))
def test_a_difference_that_the_model_is_off_by_is_not_told(off: float, scatter: float) -> None:
    base = times(MEASURED, off)  # the replay of what was measured
    other = times(base, 1 + abs(off - 1) * 0.99)

    said = sentence("6 engines instead of 8", seeds(base, scatter), seeds(other, scatter), MEASURED)

    assert "nothing differs by more than the noise of the model" in said


def test_where_p90_stays_is_said_with_the_error_of_the_model_on_top() -> None:
    case, other = "6 engines instead of 8", seeds(times(MEASURED, 1.01))

    said = sentence(case, seeds(MEASURED), other, MEASURED)
    assert said.endswith("p90 stays below 800 ms")

    said = sentence(case, seeds(MEASURED), other, times(MEASURED, 1 / 1.2))  # too slow
    assert said.endswith("p90 stays below 1 s")


def test_a_share_is_compared_in_points() -> None:
    other = msgspec.structs.replace(MEASURED, cached=50.0)

    said = sentence("caches of 0.5x", seeds(MEASURED), seeds(other), MEASURED)

    assert "the cached share is 50.0% instead of 60.0%" in said


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

    found = sized(parse_slo("p90<1s"), first, ask)

    assert found.fewest == fewest
    assert len(asked) == len(set(asked)) <= 25
    assert all(holds(found.runs[n], parse_slo("p90<1s")) == (n >= fewest) for n in found.runs)


def test_what_no_number_of_engines_holds_is_given_up_soon() -> None:
    def ask(numbers: Sequence[int]) -> dict[int, list[ReplayFigures]]:
        assert max(numbers) <= 16
        return {number: [told(2_000.0)] for number in numbers}

    assert sized(parse_slo("p90<1s"), 4, ask).fewest is None


def test_every_limit_must_hold_with_the_margin() -> None:
    limits = parse_slo("p50<500ms, p99<=2.5s")

    assert holds([told(1_000.0)], limits)
    assert not holds([told(1_000.0)], limits, {"ttft_p99": 1.3})
    assert not holds([told(1_100.0)], limits)


@pytest.mark.parametrize("text", ["", "p90", "p90<1", "p95<1s", "p90>1s", "p90<1s;p50<1s", "x"])
def test_an_slo_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BenchError, match="as p90<1s,p99<3s"):
        parse_slo(text)
