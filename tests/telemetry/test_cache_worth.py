"""What an engine's cache is worth is what requests found in it alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.routing.warm_prefixes import HALF_LIFE_SECONDS
from inferway.telemetry.cache_worth import CacheWorth, FadingTokens, found_alone


@pytest.mark.parametrize(
    ("matched", "row", "alone"),
    [
        ([5.0, 2.0, 0.0], 0, 3.0),
        ([5.0, 5.0, 0.0], 0, 0.0),
        ([5.0, 2.0, 7.0], 0, 0.0),
        ([5.0], 0, 5.0),
    ],
)
def test_what_another_one_has_as_well_is_worth_nothing(
    matched: list[float], row: int, alone: float
) -> None:
    assert found_alone(np.array(matched), row) == alone


@given(
    matched=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    row=st.integers(0, 7),
)
def test_it_is_never_more_than_was_found(matched: list[int], row: int) -> None:
    row %= len(matched)
    others = [blocks for i, blocks in enumerate(matched) if i != row]

    expected = max(0, matched[row] - max(others, default=0))
    assert found_alone(np.array(matched, float), row) == expected


def test_a_use_counts_half_after_the_half_life() -> None:
    tokens = FadingTokens()
    tokens.add("a", 100.0, now=0.0)
    tokens.add("a", 10.0, now=HALF_LIFE_SECONDS)

    assert tokens.of("a", HALF_LIFE_SECONDS) == pytest.approx(60)
    assert tokens.of("b", 0.0) == 0.0


def test_engines_that_are_no_more_are_forgotten() -> None:
    tokens = FadingTokens()
    tokens.add("a", 100.0, now=0.0)
    tokens.forget_others(["b"])

    assert tokens.of("a", 0.0) == 0.0


def test_what_other_processes_have_seen_counts_but_is_not_told_again() -> None:
    worth = CacheWorth(lambda: 0.0)
    worth.own.add("a", 100.0, now=0.0)
    worth.hear([{"a": 20.0}, {"b": 5.0}])

    assert (worth.of("a"), worth.of("b")) == (120.0, 5.0)
    [family] = worth.families_of(["a", "b"])
    assert [sample.value for sample in family.samples] == [100.0, 0.0]
