"""A request is good if its answer keeps to every goal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from inferway.config import SloSettings
from inferway.extension import EndedAnswer
from inferway.openai_api.usage import Usage
from inferway.routing.record import Record
from inferway.telemetry.request_counts import MAX_MODELS, OTHER
from inferway.telemetry.slo_counts import SloCounts, is_good

BOTH = SloSettings(ttft_seconds=1.0, itl_seconds=0.1)


def record(ttft: float | None, took: float = 0.0, tokens: int = 1, outcome: str = "ok") -> Record:
    """Of a stream that began after `ttft` seconds, if it did."""
    first = 0.0 if ttft is None else 100.0 + ttft
    return Record(
        100.0,
        known_model="m",
        is_timed=True,
        first_at=first,
        last_at=first + took,
        usage=Usage(prompt=1, completion=tokens),
        outcome=outcome,
    )


@pytest.mark.parametrize(
    ("ended", "status", "good"),
    [
        (record(0.9, took=0.9, tokens=11), 200, True),
        (record(1.1), 200, False),
        (record(0.9, took=1.2, tokens=11), 200, False),
        (record(0.9, took=9.0, tokens=1), 200, True),
        (record(0.9, outcome="upstream_error"), 200, False),
        (record(0.9, outcome="client_gone"), 200, True),
        (record(1.1, outcome="client_gone"), 200, False),
        (record(None), 200, None),  # an answer in one piece
        (record(None, outcome="upstream_error"), 502, False),
        (record(None, outcome="refused"), 429, False),
        (record(None, outcome="refused"), 400, None),
    ],
)
def test_an_answer_is_judged_by_all_goals(ended: Record, status: int, good: bool | None) -> None:
    assert is_good(BOTH, ended, status, 2.0) is good


@pytest.mark.parametrize(("waited", "good"), [(0.9, None), (1.1, False)])
def test_a_client_that_leaves_counts_once_it_has_waited_too_long(
    waited: float, good: bool | None
) -> None:
    assert is_good(BOTH, record(None, outcome="client_gone"), 499, waited) is good


def test_a_goal_that_is_not_given_is_kept() -> None:
    assert is_good(SloSettings(itl_seconds=0.1), record(50.0), 200, 50.0)
    assert is_good(SloSettings(ttft_seconds=1.0), record(0.5, took=50.0, tokens=2), 200, 51.0)


@dataclass
class Ended:
    record: Record | None
    status: int = 200
    seconds: float = 1.0


def counted(*records: Record | None) -> dict[tuple[str, str], float]:
    counts = SloCounts(BOTH)
    for each in records:
        counts.on_answers([cast(EndedAnswer, Ended(each))])
    [family] = counts.families()
    return {(s.labels["model"], s.labels["good"]): s.value for s in family.samples}


def test_requests_are_counted_by_model() -> None:
    assert counted(record(0.5), record(2.0), record(0.5), None, Record(1.0)) == {
        ("m", "true"): 2,
        ("m", "false"): 1,
    }


def test_models_beyond_the_most_are_one() -> None:
    models = [record(0.5) for _ in range(MAX_MODELS + 2)]
    for number, each in enumerate(models):
        each.known_model = f"m{number}"

    assert counted(*models)[OTHER, "true"] == 2
