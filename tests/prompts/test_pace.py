"""What is foreseen of a chat's rendering."""

from __future__ import annotations

import pytest

from inferway.prompts.loaded_model import RenderTime


def test_nothing_is_foreseen_before_the_first() -> None:
    assert RenderTime().foreseen(1) == float("inf")


def test_a_chat_takes_as_long_for_its_size_as_the_slowest_of_late() -> None:
    pace = RenderTime()
    pace.took(1_000, 0.002)
    pace.took(1_000, 0.001)

    assert pace.foreseen(2_000) == pytest.approx(2 * 0.002 * 0.9)


def test_a_slow_one_is_forgotten_in_time() -> None:
    pace = RenderTime()
    pace.took(1_000, 1.0)
    for _ in range(100):
        pace.took(1_000, 0.001)

    assert pace.foreseen(1_000) == pytest.approx(0.001)


def test_nothing_is_foreseen_of_one_much_larger_than_any_before() -> None:
    pace = RenderTime()
    pace.took(1_000, 0.001)

    assert pace.foreseen(2_000) < float("inf")
    assert pace.foreseen(2_001) == float("inf")
