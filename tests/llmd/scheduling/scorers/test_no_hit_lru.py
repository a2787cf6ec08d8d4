"""Cold prompts go round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.tables import candidates, request, target

from inferway.model import Candidates, SchedulingResult
from inferway.scheduling.prefix_source import PrecisePrefixSource
from inferway_llmd.scheduling.scorers.no_hit_lru import NoHitLru

COLD = candidates(4, prompt_blocks=10)
WARM = candidates(weighted_matched_blocks=[0, 3, 0, 0], prompt_blocks=10)


def send(scorer: NoHitLru, table: Candidates, row: int, *others: int) -> None:
    also = {f"profile {row}": target(table, row) for row in others}
    choice = SchedulingResult((target(table, row),), others=also)
    follower = scorer.follow(request(), table, choice)
    if follower is not None:
        follower.on_attempt(choice.targets[0], 0.0)


def test_who_never_had_a_cold_prompt_comes_first_in_the_tables_order() -> None:
    scores = NoHitLru(PrecisePrefixSource()).score(request(), COLD).tolist()

    assert scores == pytest.approx([1.0, 2 / 3, 1 / 3, 0.0])


def test_then_who_had_one_the_longest_time_ago() -> None:
    scorer = NoHitLru(PrecisePrefixSource())
    for row in (2, 0, 2):
        send(scorer, COLD, row)

    # e1 and e3 never, then e0, then e2
    assert scorer.score(request(), COLD).tolist() == pytest.approx([1 / 3, 1.0, 0.0, 2 / 3])


def test_a_prompt_that_somebody_holds_is_no_concern_of_it() -> None:
    scorer = NoHitLru(PrecisePrefixSource())
    send(scorer, WARM, 0)

    assert scorer.score(request(), WARM).tolist() == [0.5] * 4
    assert scorer.score(request(), COLD)[0] == 1.0


def test_where_a_cold_prompt_is_prefilled_counts_too() -> None:
    scorer = NoHitLru(PrecisePrefixSource())
    send(scorer, COLD, 0, 1)

    assert scorer.score(request(), COLD).tolist() == pytest.approx([1 / 3, 0.0, 1.0, 2 / 3])


def test_it_remembers_no_more_than_it_may() -> None:
    scorer = NoHitLru(PrecisePrefixSource(), lru_size=1)
    for row in (0, 1):
        send(scorer, COLD, row)

    assert scorer.score(request(), COLD)[0] == 1.0  # forgotten


def test_a_fleet_of_one_is_always_right() -> None:
    assert NoHitLru(PrecisePrefixSource()).score(request(), candidates(1)).tolist() == [1.0]


@given(
    rows=st.lists(st.integers(0, 5), max_size=30),
    lru_size=st.integers(1, 8),
    size=st.integers(2, 6),
)
def test_the_order_is_that_of_the_turns_whatever_was_used_and_forgotten(
    rows: list[int], lru_size: int, size: int
) -> None:
    scorer, all_six, table = (
        NoHitLru(PrecisePrefixSource(), lru_size),
        candidates(6),
        candidates(size),
    )
    turns: dict[int, int] = {}
    for turn, row in enumerate(rows, 1):
        scorer.score(request(), table)
        send(scorer, all_six, row)
        turns.pop(row, None)
        turns[row] = turn
        turns = dict(list(turns.items())[-lru_size:])
    first = sorted(range(size), key=lambda row: (turns.get(row, 0), row))

    scores = scorer.score(request(), table)

    assert scores[first].tolist() == pytest.approx([1 - rank / (size - 1) for rank in range(size)])
