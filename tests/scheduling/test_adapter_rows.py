"""Adapters by row and by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inferway.model import Adapters
from inferway.scheduling.adapter_rows import AdapterRows, adapter_rows

SIZE = 5
NAMES = st.frozensets(st.sampled_from("abc"))
ADAPTERS = st.builds(Adapters, NAMES, NAMES, st.integers(0, 4))


def masks(rows: AdapterRows, name: str) -> list[list[bool]]:
    """Where it runs, waits; where there is room."""
    nowhere = np.zeros(len(rows), np.bool_)
    running, waiting = rows.running(name), rows.waiting(name)
    found = (nowhere if running is None else running, nowhere if waiting is None else waiting)
    return [mask.tolist() for mask in (*found, rows.room)]


def expected(adapters: Sequence[Adapters], name: str) -> list[list[bool]]:
    return [
        [name in each.running for each in adapters],
        [name in each.waiting for each in adapters],
        [len(each.running) + len(each.waiting) < each.most for each in adapters],
    ]


@given(
    first=st.lists(ADAPTERS, min_size=SIZE, max_size=SIZE),
    told=st.lists(st.tuples(st.integers(0, SIZE - 1), ADAPTERS)),
    some=st.lists(st.integers(0, SIZE - 1), unique=True),
)
def test_what_was_told_last_is_found_by_name_in_all_rows_and_in_some(
    first: list[Adapters], told: list[tuple[int, Adapters]], some: list[int]
) -> None:
    rows, adapters = AdapterRows(first), list(first)
    narrowed = rows.narrowed(np.array(some, np.intp))
    for row, each in told:
        rows.tell(row, each)
        adapters[row] = each

    for name in "abc":
        assert masks(rows, name) == expected(adapters, name)
        assert masks(narrowed, name) == expected([adapters[row] for row in some], name)
    assert list(rows) == adapters
    assert list(narrowed) == [adapters[row] for row in some]
    assert rows[1:3] == adapters[1:3]


def test_of_a_name_that_is_gone_nothing_is_kept() -> None:
    rows = AdapterRows([Adapters(frozenset("a")), Adapters()])
    rows.tell(0, Adapters())

    assert rows.running("a") is None


def test_those_narrowed_can_be_narrowed_again() -> None:
    rows = AdapterRows([Adapters(most=most) for most in range(4)])

    again = rows.narrowed(np.array([1, 3])).narrowed(np.array([1]))

    assert [each.most for each in again] == [3]


def test_a_plain_list_of_them_will_do() -> None:
    rows = AdapterRows([Adapters(most=1)])

    assert adapter_rows(rows) is rows
    assert adapter_rows([Adapters(frozenset("a"))]).running("a") is not None
