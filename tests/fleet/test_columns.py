"""What scheduling gets of the endpoints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inferway.fleet.columns import STATES, EndpointColumns, ModelRows
from inferway.fleet.load import Load, parse_load
from inferway.model import BLIND, EXACT, PARTIAL, REPAIRING, SCRAPED, STALE, Adapters, Endpoint
from inferway.scheduling.idle import idle


def endpoints(holders: Sequence[int]) -> list[Endpoint]:
    return [Endpoint(f"e{holder}", f"http://e{holder}", holder) for holder in holders]


def test_a_streams_states_have_the_columns_numbers() -> None:
    numbers = [EXACT, PARTIAL, REPAIRING, STALE, BLIND]

    assert [STATES[n] for n in numbers] == ["exact", "partial", "repairing", "stale", "blind"]


def test_a_new_endpoint_is_idle_and_blind() -> None:
    columns = EndpointColumns(1)
    columns.states[0], columns.in_flight[0] = EXACT, 3

    columns.grow(3)

    assert columns.states.tolist() == [EXACT, BLIND, BLIND]
    assert columns.in_flight.tolist() == [3, 0, 0]


@pytest.mark.parametrize("holders", [[1, 2], [0, 2]], ids=["neighbours", "apart"])
def test_candidates_are_the_rows_of_the_models_endpoints(holders: list[int]) -> None:
    columns = EndpointColumns(3)
    columns.waiting[:] = [10, 11, 12]
    columns.states[:] = [EXACT, PARTIAL, STALE]
    columns.block_sizes[:] = [0, 16, 32]

    candidates = ModelRows(endpoints(holders)).candidates(columns)

    assert [e.holder for e in candidates.endpoints] == holders
    assert candidates.rows == {holders[0]: 0, holders[1]: 1}
    assert candidates.waiting.tolist() == [10 + holder for holder in holders]
    assert candidates.states.tolist() == [[EXACT, PARTIAL, STALE][holder] for holder in holders]
    assert candidates.block_sizes.tolist() == [16 * holder for holder in holders]
    assert not candidates.matched_blocks.any()


def test_a_table_of_matches_is_made_anew_and_never_written_to() -> None:
    candidates = ModelRows(endpoints([0, 1])).candidates(EndpointColumns(2))

    with pytest.raises(ValueError, match="read-only"):
        candidates.matched_blocks[0] = 1


def test_a_figure_that_engines_tell_is_one_row_of_the_table() -> None:
    """And is read, kept, shown on /metrics and to plugins by that."""
    for name, figure in SCRAPED.items():
        engine = Load(parse_load(f"{figure.metrics[0]} 0.5\n").figures)

        assert engine[name] == 0.5
        assert figure.about
        assert getattr(idle(endpoints([0]), 16), name).tolist() == [0.0]


def scraped(times: Sequence[float], waiting: Sequence[float]) -> EndpointColumns:
    columns = EndpointColumns(len(times))
    columns.scraped[:], columns.waiting[:] = times, waiting
    return columns


def test_a_stale_figure_moves_toward_the_mean_of_the_fresh_ones() -> None:
    columns = scraped([10.0, 10.0, 3.0], [8.0, 4.0, 0.0])

    columns.toward_the_mean(slice(0, 3), before=9.0, share=0.5)
    once = columns.waiting.tolist()
    columns.toward_the_mean(slice(0, 3), before=9.0, share=0.5)

    assert once == [8.0, 4.0, 3.0]
    assert columns.waiting.tolist() == [8.0, 4.0, 4.5]


def test_figures_of_endpoints_of_other_models_do_not_count() -> None:
    columns = scraped([10.0, 10.0, 3.0], [8.0, 100.0, 0.0])

    columns.toward_the_mean(np.array([0, 2]), before=9.0, share=1.0)

    assert columns.waiting.tolist() == [8.0, 100.0, 8.0]


@pytest.mark.parametrize("times", [[10.0, 10.0], [1.0, 1.0]], ids=["all fresh", "none fresh"])
def test_nothing_moves_while_all_are_fresh_or_none_is(times: list[float]) -> None:
    columns = scraped(times, [8.0, 0.0])

    columns.toward_the_mean(slice(0, 2), before=9.0, share=0.5)

    assert columns.waiting.tolist() == [8.0, 0.0]


def test_our_own_requests_in_flight_are_known_without_a_scrape() -> None:
    columns = scraped([10.0, 1.0], [8.0, 0.0])
    columns.in_flight[:] = [0.0, 5.0]

    columns.toward_the_mean(slice(0, 2), before=9.0, share=0.5)

    assert columns.in_flight.tolist() == [0.0, 5.0]


def test_candidates_show_adapters_as_they_change() -> None:
    columns = EndpointColumns(2)
    rows = ModelRows(endpoints([0, 1]), [Adapters(most=4), Adapters()])
    loaded = Adapters(frozenset({"a"}), most=4)

    rows.tell_adapters(0, loaded)
    rows.tell_adapters(7, Adapters())  # of another model

    assert list(rows.candidates(columns).adapters) == [loaded, Adapters()]
