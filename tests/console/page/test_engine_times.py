"""What the answers of each engine have taken of late."""

from __future__ import annotations

from typing import Any

from inferway_console.page.engine_times import LATEST, EngineTimes, Times
from inferway_console.records.record import RequestRecord


def record(ttft_ms: float = 10.0, **fields: Any) -> RequestRecord:
    whole = {"status": 200, "outcome": "ok", "streamed": True, **fields}
    return RequestRecord(id="r", at=0.0, ttft_ms=ttft_ms, **whole)


def test_it_tells_quantiles_and_failures_by_engine() -> None:
    times = EngineTimes()
    for ms in range(100):
        times.add(record(float(ms)), "a")
    times.add(record(-1.0, status=502, outcome="upstream_error"), "b")

    assert times.of("a") == Times(100, 0, 50.0, 95.0)
    assert times.of("b") == Times(1, 1, None, None)
    assert times.of("c") is None


def test_only_the_last_answers_count() -> None:
    times = EngineTimes()
    for _ in range(LATEST):
        times.add(record(status=503), "a")
    for _ in range(LATEST):
        times.add(record(), "a")

    found = times.of("a")
    assert found is not None
    assert (found.requests, found.failed) == (LATEST, 0)


def test_engines_that_have_left_are_forgotten() -> None:
    times = EngineTimes()
    times.add(record(), "a")
    times.add(record(), "b")
    times.forget_others({"b": None})

    assert times.of("a") is None
    assert times.of("b") is not None
