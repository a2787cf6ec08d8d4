"""What filters leave."""

from __future__ import annotations

import numpy as np
from tests.scheduling.tables import candidates

from inferway.model import Adapters, Column, ColumnKey
from inferway.scheduling.per_endpoint import MOST_LISTS, PerEndpoint
from inferway.scheduling.profile import MOST_REMEMBERED, RowSelector

EXTRA: ColumnKey[Column] = ColumnKey("extra")


def test_all_columns_are_narrowed_alike() -> None:
    table = candidates(
        adapters=[Adapters(most=row) for row in range(4)], waiting=[0, 1, 2, 3], matched_blocks=5
    )
    table.add(EXTRA, np.array([0.0, 10.0, 20.0, 30.0]))
    table.now = 7.0

    left = RowSelector().kept(table, np.array([False, True, False, True]))

    assert [endpoint.engine for endpoint in left.endpoints] == ["e1", "e3"]
    assert dict(left.rows) == {1: 0, 3: 1}
    assert [adapters.most for adapters in left.adapters] == [1, 3]
    assert left.waiting.tolist() == [1.0, 3.0]
    extra = left.get(EXTRA)
    assert extra is not None
    assert extra.tolist() == [10.0, 30.0]
    assert left.now == 7.0


def test_where_all_are_kept_nothing_is_made() -> None:
    table = candidates(2)

    assert RowSelector().kept(table, np.ones(2, np.bool_)) is table


def test_the_same_endpoints_are_the_same_list() -> None:
    table, narrowing = candidates(3), RowSelector()
    some = np.array([True, False, True])

    first = narrowing.kept(table, some)
    again = narrowing.kept(table, some.copy())
    other = narrowing.kept(table, ~some)

    assert first.endpoints is again.endpoints
    assert other.endpoints is not first.endpoints


def test_no_more_is_remembered_than_may_be() -> None:
    table, narrowing, some = candidates(2), RowSelector(), np.array([True, False])
    first = narrowing.kept(table, some)
    for _ in range(MOST_REMEMBERED):
        narrowing.kept(candidates(2), some)

    assert narrowing.kept(table, some).endpoints is not first.endpoints


def test_what_follows_from_endpoints_is_computed_once_for_each_list() -> None:
    computed: list[int] = []

    def count(_: object) -> int:
        computed.append(1)
        return len(computed)

    of = PerEndpoint(count)
    lists = [candidates(1).endpoints for _ in range(MOST_LISTS + 1)]

    assert [of(each) for each in lists[:3]] == [of(each) for each in lists[:3]] == [1, 2, 3]
    for each in lists:
        of(each)
    assert of(lists[-1]) == len(computed)
    assert of(lists[0]) == len(computed)  # forgotten, and computed anew
