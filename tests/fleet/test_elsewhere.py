"""What other gateways have on their way counts in the table as long as they claim it."""

from __future__ import annotations

import os

import pytest
from tests.cluster.gateways import table

from inferway.fleet.elsewhere import Claims, Count, OwnCounts
from inferway.fleet.load import Load
from inferway.fleet.shared_columns import SharedColumns, shared_memory
from inferway.fleet.table import RECENT_SECONDS, EndpointTable
from inferway.kv.index.memory import MemoryIndex


def in_flight(made: EndpointTable) -> list[float]:
    return [float(each) for each in made.candidates("m").in_flight]


def test_claims_are_added_to_what_this_gateway_has_in_flight() -> None:
    made = table()
    one, other = Claims(made), Claims(made)
    made.book(made.candidates("m").endpoints[0], 100)

    one.set(Count("a", 3.0, 0.0))
    one.set(Count("a", 2.0, 0.0))
    other.set(Count("a", 5.0, 0.0))
    other.set(Count("b", 1.0, 0.0))

    assert in_flight(made) == [8.0, 1.0, 0.0]
    other.clear()
    assert in_flight(made) == [3.0, 0.0, 0.0]


def test_what_an_engine_says_beyond_all_of_it_is_others() -> None:
    """The engine's own count has what peers sent, too: it must not count twice."""
    made = table()
    Claims(made).set(Count("a", 4.0, 0.0))
    [engine] = [each for each in made._engines if each.name == "a"]
    engine.load = Load({"running": 6, "waiting": 0})

    made.note_load(engine, 1.0)

    rows = made.candidates("m")
    assert (rows.in_flight[0], rows.others[0]) == (4.0, 2.0)


def test_tokens_fade_with_those_of_this_gateway() -> None:
    made = table()
    made.fade(0.0)
    claims = Claims(made)
    claims.set(Count("a", 1.0, 1000.0))

    made.fade(RECENT_SECONDS)
    assert made.candidates("m").recent_prefill_tokens[0] == pytest.approx(367.9, abs=0.1)
    claims.drop("a")

    assert made.candidates("m").recent_prefill_tokens[0] == pytest.approx(0.0, abs=1e-9)


def test_an_endpoint_that_leaves_takes_the_claims_along() -> None:
    made = table()
    claims = Claims(made)
    claims.set(Count("a", 3.0, 10.0))
    [engine] = [each for each in made._engines if each.name == "a"]

    made.retire(engine, 0.0)
    claims.set(Count("a", 5.0, 10.0))  # it is not known any more
    claims.drop("a")

    assert made.rested(1000.0) == [engine]
    assert made.holder_of("a") is None


def test_own_counts_are_without_those_of_others_and_told_when_they_change() -> None:
    made = table()
    own, claims = OwnCounts(made), Claims(made)
    claims.set(Count("b", 3.0, 10.0))
    assert own.changed() == []
    endpoint = made.candidates("m").endpoints[1]

    made.book(endpoint, 100)
    assert own.changed() == [Count("b", 1.0, 100.0)]
    assert own.changed() == []
    assert own.all() == [Count("b", 1.0, 100.0)]
    made.release(endpoint)

    assert own.changed() == [Count("b", 0.0, 100.0)]


def test_processes_that_share_columns_count_peers_in_the_hubs_row() -> None:
    memory = shared_memory(2)
    hub, worker = SharedColumns(memory, 0), SharedColumns(memory, 1)
    os.close(memory)
    made = EndpointTable([], MemoryIndex(), hub)
    hub.grow(2)
    worker.grow(2)
    worker.book(0, 50)
    worker.book(0, 50)

    made.count_elsewhere(0, 3.0, 10.0)
    worker.add_up()
    own, tokens = hub.own()

    assert worker.in_flight.tolist() == [5.0, 0.0]
    assert (own.tolist(), tokens.tolist()) == ([2.0, 0.0], [100.0, 0.0])
