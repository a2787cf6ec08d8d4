"""What is said of two endpoints from their blocks: seldom a difference that is none."""

from __future__ import annotations

import numpy as np
import pytest

from inferway_bench.loading.paired import LEVEL, Blocks, changes, verdict

PAIRS = 16


def blocks_of(
    rng: np.random.Generator, pairs: int = PAIRS, slower: float = 1.0, cached: float = 60.0
) -> tuple[Blocks, Blocks]:
    """Two endpoints on a machine that drifts and stalls; B's first tokens take `slower` times as
    long, and its share of cached tokens is `cached`, A's 60 %."""
    drift = np.exp(np.cumsum(rng.normal(0, 0.05, pairs)))
    sides: list[Blocks] = []
    for factor, share in ((1.0, 60.0), (slower, cached)):
        own = drift * np.exp(0.05 * rng.standard_t(3, pairs))
        sides.append(
            [
                {
                    "TTFT, ms": 100.0 * factor * load * np.exp(rng.normal(0, 0.03)),
                    "TTFT p90, ms": 200.0 * factor * load * np.exp(rng.normal(0, 0.1)),
                    "ITL, ms": 10.0 * load * np.exp(rng.normal(0, 0.02)),
                    "tokens/s": 500.0 * np.exp(rng.normal(0, 0.02)),
                    "cached, %": share + rng.normal(0, 2),
                }
                for load in own
            ]
        )
    return sides[0], sides[1]


def names_of_differences(a: Blocks, b: Blocks) -> list[str]:
    return [change.figure.name for change in changes(a, b) if change.is_difference]


@pytest.mark.parametrize("pairs", [10, PAIRS])
def test_equal_endpoints_are_called_different_less_often_than_the_level(pairs: int) -> None:
    rng = np.random.default_rng(49)

    wrong = sum(bool(names_of_differences(*blocks_of(rng, pairs))) for _ in range(1_000))

    assert wrong <= 2 * LEVEL * 1_000  # twice: the count of a thousand is chance itself


def test_a_fifth_more_time_to_the_first_token_is_found() -> None:
    rng = np.random.default_rng(49)

    found = sum("TTFT, ms" in names_of_differences(*blocks_of(rng, slower=1.2)) for _ in range(200))

    assert found >= 0.9 * 200


def test_the_sentence_says_what_is_worse_and_between_which_bounds() -> None:
    a, b = blocks_of(np.random.default_rng(1), slower=1.5, cached=40.0)

    said = verdict(changes(a, b), "ours", "theirs")

    assert said.startswith("theirs is worse than ours: time to the first token ")
    assert "share of cached prompt tokens 20 points lower (" in said
    assert "throughput" not in said


def test_the_sentence_says_that_each_is_better_in_some_figures() -> None:
    a, b = blocks_of(np.random.default_rng(1), slower=1.5, cached=80.0)

    assert "B is better than A in some figures and worse in others: share of cached" in verdict(
        changes(a, b), "A", "B"
    )


def test_the_sentence_of_equal_endpoints_says_how_much_they_could_differ() -> None:
    a, b = blocks_of(np.random.default_rng(1))

    assert verdict(changes(a, b), "A", "B").startswith(
        "No difference between A and B was found: beside A, the time to the first token of B is "
        "between -"
    )


def test_a_difference_that_is_sure_but_small_is_none() -> None:
    a: Blocks = [{"TTFT, ms": 100.0 + pair, "cached, %": 50.0} for pair in range(PAIRS)]
    b: Blocks = [{"TTFT, ms": 101.0 + pair, "cached, %": 51.0} for pair in range(PAIRS)]

    assert names_of_differences(a, b) == []


def test_a_figure_that_a_block_lacks_is_left_out_and_zero_shares_are_equal() -> None:
    a: Blocks = [{"TTFT, ms": 100.0 + pair, "cached, %": 0.0} for pair in range(PAIRS)]

    found = changes(a, [{**block, "ITL, ms": 1.0} for block in a])

    assert [change.figure.name for change in found] == ["TTFT, ms", "cached, %"]
    assert [change.is_difference for change in found] == [False, False]


def test_fewer_pairs_than_the_level_needs_are_refused() -> None:
    a, b = blocks_of(np.random.default_rng(1), pairs=9)

    with pytest.raises(ValueError, match="expected 10 pairs at least"):
        changes(a, b)
