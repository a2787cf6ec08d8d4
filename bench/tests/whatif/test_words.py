"""What is said of differences, and what is not."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from inferway_bench.whatif.figures import ReplayFigures, sentence

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
