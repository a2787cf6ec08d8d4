"""The gateway does not grow by itself: neither in lines nor in what a request takes."""

from __future__ import annotations

import sys

import pytest
from tests.budgets.table import Figures, Key, of_requests, of_sources, read_table

BUDGETS = read_table()
OF_REQUESTS = [key for key in BUDGETS if key[0] == "requests"]
OF_SOURCES = [key for key in BUDGETS if key[0] != "requests"]
# An instruction more or less is no finding.
TOLERANCE = 0.02
CURE = "see tests/budgets/table.py"


@pytest.fixture(scope="module")
def requests() -> Figures:
    return of_requests()


def test_every_figure_has_a_budget() -> None:
    assert list(of_sources()) == OF_SOURCES


@pytest.mark.parametrize("key", OF_SOURCES, ids=" ".join)
def test_sources_keep_within_their_budget(key: Key) -> None:
    figure, budget = of_sources()[key], BUDGETS[key]

    assert figure <= budget, f"it grew: make it smaller, or change its budget; {CURE}"
    assert budget <= figure * (1 + TOLERANCE) + 1, f"it fell: let its budget fall, too; {CURE}"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the table has CPython 3.11's figures")
@pytest.mark.timeout(600)
def test_requests_keep_within_their_budgets(requests: Figures) -> None:
    assert list(requests) == OF_REQUESTS

    grown = {k: (requests[k], BUDGETS[k]) for k in OF_REQUESTS if _is_more(requests[k], BUDGETS[k])}
    fallen = {
        k: (requests[k], BUDGETS[k]) for k in OF_REQUESTS if _is_more(BUDGETS[k], requests[k])
    }

    assert not grown, f"(now, budget): make them smaller, or change their budgets; {CURE}"
    assert not fallen, f"(now, budget): let the budgets fall, too; {CURE}"


def _is_more(figure: float, than: float) -> bool:
    return figure > than * (1 + TOLERANCE)
