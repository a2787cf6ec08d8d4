"""Samples -> what is known of an endpoint."""

from __future__ import annotations

from typing import Any

import pytest
from bench.tests.loading.made import failed, sample

from inferway_bench.loading.answers import Sample
from inferway_bench.loading.drive import Driven
from inferway_bench.loading.measured import MeasuredLoad, Slo, Stage, doubts, keep, row_of
from inferway_bench.processes import BenchError
from inferway_bench.rows import Row

_TEN = Stage(rate=10.0)


def kept(*samples: Sample, stage: Stage | None = None, **changes: Any) -> MeasuredLoad:
    fields: dict[str, Any] = {"seconds": 10.0, **changes}
    is_whole, cpu_share = fields.pop("is_whole", True), fields.pop("cpu_share", 0.1)
    return keep(Driven(list(samples), 10.0, cpu_share, is_whole), stage or _TEN, **fields)


def of(*samples: Sample, slo: Slo | None = None, **changes: Any) -> Row:
    return row_of(kept(*samples, **changes), slo or Slo())


def said_against(*samples: Sample, **changes: Any) -> list[str]:
    return doubts(kept(*samples, **changes))


def steady(count: int = 100, **changes: Any) -> list[Sample]:
    return [sample(0.1 * i, **changes) for i in range(count)]


def test_warm_up_and_cool_down_are_left_out() -> None:
    slow = [sample(0.1 * i, wait=5.0) for i in (*range(10), *range(95, 100))]

    measured = kept(*slow, *steady()[10:95], warm_up=1.0, cool_down=0.5)

    assert (len(measured.samples), measured.seconds) == (85, 8.5)
    assert row_of(measured, Slo()).median("TTFT max") == pytest.approx(100)


def test_a_first_request_that_was_sent_before_its_time_counts() -> None:
    assert of(sample(-0.0004), *steady()[1:]).values["requests"] == 100


def test_latency_counts_from_the_intended_time_and_from_sending() -> None:
    late = sample(1.0, wait=2.1, sent=3.0, held=2.0)

    found = of(*steady()[10:], late)

    assert found.median("TTFT max") == pytest.approx(2_100)
    assert found.median("TTFT sent p99") == pytest.approx(100)


def test_failures_are_counted_by_kind_and_have_no_latency() -> None:
    samples = [*steady(90), failed(9.1), failed(9.2), failed(9.3, "timeout")]
    found, doubted = of(*samples), said_against(*samples)

    assert (found.values["requests"], found.values["failed"]) == (93, 3)
    assert found.median("TTFT max") == pytest.approx(100)
    assert "3 of 93 requests failed (status 503 2, timeout 1)" in doubted
    assert "timeout: busy" in doubted


def test_the_cached_share_is_of_tokens_not_of_requests() -> None:
    large = sample(0.05, prompt_tokens=4000, cached_tokens=0)

    found = of(*steady(), large)

    assert found.median("cached") == pytest.approx(100 * 30 / (100 * 40 + 4000))


def test_a_server_that_says_nothing_where_nothing_was_cached_means_zero() -> None:
    silent = [sample(0.1 * i, cached_tokens=None) for i in range(100)]
    found = of(*steady(), *silent)

    assert found.median("cached") == pytest.approx(0.5 * 30 / 40)


def test_a_server_that_never_says_is_not_guessed() -> None:
    silent = steady(cached_tokens=None)

    assert of(*silent).values["cached"] is None
    assert any("--enable-prompt-tokens-details" in doubt for doubt in said_against(*silent))


def test_tokens_count_when_they_come_not_when_they_were_asked_for() -> None:
    """All are asked for in time, and half of the answers come after the end."""
    late = [sample(0.1 * i, wait=100.0) for i in range(50, 100)]

    found = of(*steady(50), *late)

    assert found.median("tokens/s") == pytest.approx(50 * 3 / 10, rel=0.02)
    assert any("does not keep up" in doubt for doubt in said_against(*steady(50), *late))


def test_time_between_tokens_is_by_the_servers_count_of_them() -> None:
    found = of(*steady(completion_tokens=5))

    assert found.median("ITL p50") == pytest.approx(20 / 4)


def test_goals_are_judged_over_all_requests_failed_ones_too() -> None:
    slow = [sample(0.1 * i, wait=0.6) for i in range(80, 90)]

    found = of(*steady(80), *slow, *[failed(9.0 + 0.1 * i) for i in range(10)], slo=Slo(ttft=0.5))

    assert found.median("kept") == pytest.approx(0.8)
    assert found.median("good answers/s") == pytest.approx(8.0)


def test_nothing_measured_is_an_error_with_a_cure() -> None:
    with pytest.raises(BenchError, match=r"100 requests, none .* --warm-up"):
        of(*steady(), warm_up=20.0, seconds=30.0)


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"cpu_share": 0.95}, "load generator was the bottleneck"),
        ({"is_whole": False}, "stopped before its end"),
    ],
)
def test_what_speaks_against_a_run_is_said(changes: dict[str, Any], doubt: str) -> None:
    assert any(doubt in said for said in said_against(*steady(), **changes))


@pytest.mark.parametrize(
    ("samples", "doubt"),
    [
        (steady(late=0.05), "late by itself: 50.0 ms"),
        (steady(20), "99th percentile is hardly more"),
        (steady(prompt_tokens=None, cached_tokens=None), "says no usage"),
        (steady(num_deltas=1, gaps=()), "more than one piece"),
        ([sample(0.1 * i, wait=0.03 * i) for i in range(100)], "does not keep up"),
        (steady(ended=15.0), "more --warm-up"),
        ([*steady(90), failed(9.5)], r"1 of 91 requests failed (status 503 1)"),
        (steady(held=0.5), "100 turns waited for the answer before"),
    ],
)
def test_what_speaks_against_the_samples_is_said(samples: list[Sample], doubt: str) -> None:
    assert any(doubt in said for said in said_against(*samples))


def test_against_a_good_run_nothing_is_said() -> None:
    assert said_against(*steady()) == []
