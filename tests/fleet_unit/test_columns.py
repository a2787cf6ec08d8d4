"""What scheduling gets of the endpoints."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inferway.fleet.columns import STATES, EndpointColumns, ModelRows
from inferway.model import BLIND, EXACT, PARTIAL, REPAIRING, STALE, Endpoint


def endpoints(holders: Sequence[int]) -> list[Endpoint]:
    return [Endpoint(f"e{holder}", f"http://e{holder}", holder) for holder in holders]


def test_a_streams_states_have_the_columns_numbers() -> None:
    numbers = [EXACT, PARTIAL, REPAIRING, STALE, BLIND]

    assert [STATES[n] for n in numbers] == ["exact", "partial", "repairing", "stale", "blind"]


def test_a_new_endpoint_is_idle_and_blind() -> None:
    columns = EndpointColumns()
    columns.grow(1)
    columns.states[0], columns.in_flight[0] = EXACT, 3

    columns.grow(3)

    assert columns.states.tolist() == [EXACT, BLIND, BLIND]
    assert columns.in_flight.tolist() == [3, 0, 0]


@pytest.mark.parametrize("holders", [[1, 2], [0, 2]], ids=["neighbours", "apart"])
def test_candidates_are_the_rows_of_the_models_endpoints(holders: list[int]) -> None:
    columns = EndpointColumns()
    columns.grow(3)
    columns.waiting[:] = [10, 11, 12]
    columns.states[:] = [EXACT, PARTIAL, STALE]

    candidates = ModelRows(endpoints(holders), [16, None]).candidates(columns)

    assert [e.holder for e in candidates.endpoints] == holders
    assert candidates.rows == {holders[0]: 0, holders[1]: 1}
    assert candidates.waiting.tolist() == [10 + holder for holder in holders]
    assert candidates.states.tolist() == [[EXACT, PARTIAL, STALE][holder] for holder in holders]
    assert candidates.block_sizes.tolist() == [16, 0]
    assert not candidates.matched_blocks.any()
