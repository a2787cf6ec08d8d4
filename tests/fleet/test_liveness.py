"""When an engine that says nothing counts as lost: pure rules, with a clock that is given."""

from __future__ import annotations

import pytest

from inferway.fleet.liveness import (
    FIRST_SECONDS,
    LEARNED_SECONDS,
    QUIET_SECONDS,
    SILENT_SECONDS,
    UNKNOWN_SECONDS,
    Liveness,
)
from inferway.fleet.outage import Outage, OutageKind, duration

AWAKE = 0.0


def answering(seconds: float, until: float = 100.0) -> Liveness:
    """An engine whose API took so long for its answers."""
    live = Liveness()
    live.is_asked(until - seconds)
    live.has_answered(until, AWAKE)
    return live


def computing(pause: float, until: float = 100.0) -> Liveness:
    """An engine whose core had work, and was quiet for so long at a time."""
    live = Liveness(has_generated=True)
    live.has_work(until - 2 * pause, works=True)
    live.has_progressed(until - pause, AWAKE, generated=True)
    live.has_progressed(until, AWAKE, generated=True)
    return live


def test_an_engine_that_owes_no_answer_is_not_silent() -> None:
    assert not answering(0.01).is_silent(1e6, AWAKE)


@pytest.mark.parametrize(
    ("took", "late"), [(0.005, SILENT_SECONDS), (1.0, 4.0), (2.6, 5.0), (8.0, 12.0)]
)
def test_an_answer_is_late_by_what_answers_took_of_late(took: float, late: float) -> None:
    live = answering(took)
    live.is_asked(101.0)

    assert not live.is_silent(101.0 + 0.9 * late, AWAKE)
    assert live.is_silent(101.0 + late + 0.1, AWAKE)


def test_further_questions_do_not_make_an_answer_less_late() -> None:
    live = answering(0.01)
    for second in range(10):
        live.is_asked(101.0 + second)

    assert live.is_silent(101.0 + SILENT_SECONDS + 0.1, AWAKE)


def test_an_outage_does_not_make_patient() -> None:
    live = answering(2 * LEARNED_SECONDS)
    live.is_asked(200.0)

    assert live.is_silent(200.0 + SILENT_SECONDS + 0.1, AWAKE)


def test_an_outage_that_was_found_makes_no_more_patient_than_a_slow_answer() -> None:
    live = Liveness()
    live.is_asked(93.0)
    live.has_answered(100.0, AWAKE, was_out=True)
    live.is_asked(101.0)

    assert not live.is_silent(101.0 + 4.9, AWAKE)
    assert live.is_silent(101.0 + 5.1, AWAKE)


def test_what_was_slow_long_ago_is_forgotten() -> None:
    live = answering(5.0)
    live.is_asked(2000.0)

    assert live.is_silent(2000.0 + SILENT_SECONDS + 0.1, AWAKE)


def test_time_that_this_process_stood_still_does_not_count() -> None:
    live = answering(0.01)
    live.is_asked(101.0)

    assert not live.is_silent(200.0, awake=199.0)
    assert live.is_silent(199.0 + SILENT_SECONDS + 0.1, awake=199.0)


@pytest.mark.parametrize(
    ("pause", "expected", "late"),
    [
        (0.02, 0.0, QUIET_SECONDS),
        (1.0, 0.0, 4.0),
        (2.6, 0.0, 5.0),
        (0.02, 10.0, 30.0),
        (0.02, None, UNKNOWN_SECONDS),
    ],
)
def test_a_core_is_late_by_its_pauses_and_by_what_its_prompts_should_take(
    pause: float, expected: float | None, late: float
) -> None:
    live = computing(pause)
    live.tried = 100.0

    assert not live.is_stalled(100.0 + 0.9 * late, AWAKE, expected)
    assert live.is_stalled(100.0 + late + 0.1, AWAKE, expected)


def test_a_core_is_tried_before_it_counts_as_stalled() -> None:
    live = computing(0.02)

    assert not live.is_quiet(100.0 + QUIET_SECONDS / 2 - 0.1, AWAKE, 0.0)
    assert live.is_quiet(100.0 + QUIET_SECONDS / 2 + 0.1, AWAKE, 0.0)
    assert not live.is_stalled(1e6, AWAKE, 0.0)


def test_a_core_has_half_of_the_time_for_a_try() -> None:
    live = computing(0.02)
    live.tried = 109.0

    assert not live.is_stalled(109.0 + QUIET_SECONDS / 2 - 0.1, AWAKE, 0.0)
    assert live.is_stalled(109.0 + QUIET_SECONDS / 2 + 0.1, AWAKE, 0.0)


def test_time_without_work_is_no_pause() -> None:
    live = computing(0.02)
    live.has_work(150.0, works=False)
    live.has_work(151.0, works=True)
    live.has_progressed(151.1, AWAKE, generated=True)

    assert live.pauses.seconds(151.1) < 0.2
    assert not live.is_quiet(151.1 + QUIET_SECONDS / 2 - 0.1, AWAKE, 0.0)


def test_a_core_that_has_never_computed_has_longer() -> None:
    live = Liveness()
    live.has_work(100.0, works=True)
    live.tried = 100.0

    assert not live.is_stalled(100.0 + FIRST_SECONDS - 0.1, AWAKE, 0.0)
    assert live.is_stalled(100.0 + FIRST_SECONDS + 0.1, AWAKE, 0.0)


def test_a_cache_that_fills_does_not_end_the_time_for_the_first_token() -> None:
    live = Liveness()
    live.has_work(100.0, works=True)
    live.has_progressed(100.4, AWAKE, generated=False)
    live.tried = 100.4

    assert not live.is_stalled(100.4 + FIRST_SECONDS - 0.1, AWAKE, 0.0)
    assert live.is_stalled(100.4 + FIRST_SECONDS + 0.1, AWAKE, 0.0)


def test_the_first_answer_of_an_engine_is_no_measure() -> None:
    live = Liveness()
    live.has_work(0.0, works=True)
    live.has_progressed(9.0, AWAKE, generated=True)

    assert live.pauses.seconds(9.0) == 0.0


def test_an_engine_that_comes_back_has_shown_nothing() -> None:
    live = computing(2.0)
    live.comes(200.0)

    assert not live.has_generated
    assert live.pauses.seconds(200.0) == 0.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (211, "3 min 31 s"), (7500, "2 h 5 min"),
     (3600, "1 h"), (273_600, "3 d 4 h"), (-1, "0 s")],
)  # fmt: skip
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_an_outage_says_what_since_when_and_why() -> None:
    outage = Outage(OutageKind.STALLED, since=100.0, heard=99.0, error="no token came")

    assert outage.words(311.0) == ("answers, but computes nothing, since 3 min 31 s: no token came")


def test_an_outage_keeps_its_beginning_when_it_changes() -> None:
    first = Outage(OutageKind.SILENT, since=100.0, heard=99.0, error="late")
    then = first.told(Outage(OutageKind.UNREACHABLE, since=150.0, heard=99.0, error="refused"))

    assert (then.kind, then.since, then.error) == (OutageKind.UNREACHABLE, 100.0, "refused")
    assert (first.is_silence, then.is_silence) == (True, False)
