"""What several processes read and write together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from inferway.fleet.columns import ModelRows
from inferway.fleet.shared_columns import MOST_ENDPOINTS, SharedColumns, shared_memory
from inferway.fleet.table import EndpointTable
from inferway.kv.index.memory import MemoryIndex
from inferway.model import BLIND, EXACT, FIGURES, Endpoint
from inferway.scheduling.expected_ttft.sent_log import ROW


@pytest.fixture
def memory() -> Iterator[int]:
    made = shared_memory(3)
    yield made
    os.close(made)


def test_what_the_first_process_hears_the_others_read(memory: int) -> None:
    hub, worker = SharedColumns(memory, 0), SharedColumns(memory, 1)
    hub.grow(2)
    worker.grow(2)

    hub.states[1], hub.waiting[1], hub.block_sizes[1] = EXACT, 7, 16

    assert worker.states.tolist() == [BLIND, EXACT]
    assert (worker.waiting[1], worker.block_sizes[1]) == (7, 16)
    with pytest.raises(ValueError, match="read-only"):
        worker.waiting[1] = 8


def test_a_column_of_every_figure_is_there(memory: int) -> None:
    columns = SharedColumns(memory, 0)
    columns.grow(3)

    for name, figure in FIGURES.items():
        assert getattr(columns, name).tolist() == [figure.unknown] * 3


def test_what_processes_have_sent_of_late_goes_with_them_and_with_nothing_else(memory: int) -> None:
    hub, one, other = [SharedColumns(memory, place) for place in range(3)]
    for each in (hub, one, other):
        each.grow(2)
    one.sent[1], other.sent[2] = 5.0, 7.0
    assert other.sent.sum(axis=1).tolist() == [0.0, 5.0 * ROW, 7.0 * ROW]

    hub.clear(1)
    hub.process_ended(1)

    assert one.sent.sum(axis=1).tolist() == [0.0, 0.0, 7.0 * ROW]
    assert one.in_flight.tolist() == [0.0, 0.0]


def test_requests_of_all_processes_are_added_up(memory: int) -> None:
    processes = [SharedColumns(memory, place) for place in range(3)]
    for each in processes:
        each.grow(4)

    processes[1].book(2, 100)
    processes[2].book(2, 50)
    processes[2].book(3, 10)
    processes[1].release(2)
    rows = ModelRows([Endpoint("e2", "http://e2", 2), Endpoint("e3", "http://e3", 3)])
    found = rows.candidates(processes[0])

    assert found.in_flight.tolist() == [1, 1]
    assert found.recent_prefill_tokens.tolist() == [150, 10]


def test_each_process_fades_what_it_has_sent_itself(memory: int) -> None:
    one, other = SharedColumns(memory, 0), SharedColumns(memory, 1)
    for each in (one, other):
        each.grow(1)
        each.book(0, 100)

    one.fade(0.5)
    other.add_up()

    assert other.recent_prefill_tokens.tolist() == [150]


def test_the_requests_of_a_process_end_with_it(memory: int) -> None:
    hub, worker = SharedColumns(memory, 0), SharedColumns(memory, 1)
    for each in (hub, worker):
        each.grow(2)
        each.book(1, 10)

    hub.process_ended(1)
    hub.add_up()

    assert hub.in_flight.tolist() == [0, 1]
    assert hub.recent_prefill_tokens.tolist() == [0, 10]


def test_a_number_that_another_endpoint_gets_is_as_new(memory: int) -> None:
    hub, worker = SharedColumns(memory, 0), SharedColumns(memory, 1)
    for each in (hub, worker):
        each.grow(1)
    hub.running[0] = 3
    worker.book(0, 10)

    hub.clear(0)
    hub.add_up()

    assert (hub.running[0], hub.in_flight[0], hub.recent_prefill_tokens[0]) == (0, 0, 0)


def test_another_process_sees_the_same_memory(memory: int) -> None:
    hub = SharedColumns(memory, 0)
    hub.grow(1)
    hub.kv_usage[0] = 0.25
    program = (
        "from inferway.fleet.shared_columns import SharedColumns\n"
        f"columns = SharedColumns({memory}, 1)\n"
        "columns.grow(1)\n"
        "columns.book(0, int(columns.kv_usage[0] * 100))\n"
    )

    subprocess.run([sys.executable, "-c", program], pass_fds=[memory], check=True)
    hub.add_up()

    assert (hub.in_flight[0], hub.recent_prefill_tokens[0]) == (1, 25)


def test_there_is_room_for_so_many(memory: int) -> None:
    with pytest.raises(ValueError, match=str(MOST_ENDPOINTS)):
        SharedColumns(memory, 0).grow(MOST_ENDPOINTS + 1)


def test_a_table_of_shared_columns_does_not_hear_of_all_that_is_sent(memory: int) -> None:
    table = EndpointTable([], MemoryIndex(), SharedColumns(memory, 0))

    assert not table.hears_of_all
