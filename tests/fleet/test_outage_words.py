"""What people are told of an outage."""

from __future__ import annotations

import pytest

from inferway.fleet.outage import (
    Outage,
    OutageKind,
    down_words,
    effect,
    outage_words,
    page_of,
    since_words,
    steps,
)
from inferway.routing.limits.outlier_detection import Affected

UNIX = 1_795_957_062.0  # 2026-11-29 12:57:42 UTC
FROZEN = Outage(OutageKind.SILENT, 1000.0, 998.0, "no answer for 4.1 s")


def test_since_when_is_a_time_of_day_and_a_span() -> None:
    assert since_words(UNIX - 12, UNIX) == "since 12:57:30 UTC (12 s)"
    assert since_words(UNIX - 13 * 3600, UNIX) == "since 2026-11-28 23:57:42 UTC (13 h)"


def test_what_is_wrong_is_said_with_since_when_and_what_was_heard_last() -> None:
    assert outage_words(FROZEN, 1012.0, UNIX) == (
        "does not answer since 12:57:30 UTC (12 s): no answer for 4.1 s"
    )


@pytest.mark.parametrize(
    ("affected", "said"),
    [
        (Affected(), "no request has been hurt"),
        (Affected(moved=3), "0 requests failed, 3 moved to other engines"),
        (Affected(moved=0, failed=1), "1 request failed, 0 moved to other engines"),
    ],
)
def test_what_it_means_for_requests(affected: Affected, said: str) -> None:
    assert effect(affected) == said


@pytest.mark.parametrize("kind", OutageKind)
def test_each_kind_has_two_steps_and_a_page(kind: OutageKind) -> None:
    told = steps(kind, "http://e:1")

    assert told.startswith("(1) ")
    assert told.count("(2) ") == 1
    assert "{" not in told
    assert page_of(kind).startswith("https://")


def test_the_log_says_what_to_do_when_an_engine_goes_out() -> None:
    line = down_words("e", "http://e:1", FROZEN)

    assert line.startswith("engine e does not answer: no answer for 4.1 s; it gets no requests")
    assert "curl -m 5 http://e:1/health" in line
