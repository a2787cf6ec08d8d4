"""Which engines get new requests."""

from __future__ import annotations

from inferway.config import EjectionSettings
from inferway.routing.limits.circuit_breaker import BreakerState
from inferway.routing.limits.outlier_detection import OutlierDetection

ALL = ("a", "b", "c")


def standing(*ejected: str, drained: tuple[str, ...] = ()) -> OutlierDetection:
    found = OutlierDetection(EjectionSettings(failures=1, seconds=5.0), set(drained))
    for engine in ejected:
        assert found.failed(engine, 100.0)
    return found


def test_nothing_stands_against_an_engine_that_has_not_failed() -> None:
    assert standing().is_plain
    assert standing().allowed(ALL, 0.0) == {"a", "b", "c"}


def test_an_ejected_engine_is_left_out() -> None:
    assert standing("a").allowed(ALL, 101.0) == {"b", "c"}


def test_all_are_in_if_all_are_ejected() -> None:
    assert standing(*ALL).allowed(ALL, 101.0) == {"a", "b", "c"}


def test_a_drained_engine_is_left_out_even_if_all_others_are_ejected() -> None:
    assert standing("a", "b", drained=("c",)).allowed(ALL, 101.0) == {"a", "b"}


def test_none_is_left_if_all_are_drained() -> None:
    assert standing(drained=ALL).allowed(ALL, 0.0) == frozenset()


def test_an_ejected_engine_takes_one_request_when_its_time_is_over() -> None:
    found = standing("a")

    assert (found.takes("a", 104.9), found.takes("a", 105.0)) == (False, True)
    found.sent("a", 105.0)
    assert not found.takes("a", 105.0)
    found.abandoned("a")
    assert found.takes("a", 105.0)


def test_an_answered_probe_brings_it_back() -> None:
    found = standing("a")
    found.sent("a", 105.0)
    found.succeeded("a", 105.5)

    assert found.state("a", 105.5) is BreakerState.CLOSED
    assert found.is_plain
    assert found.allowed(ALL, 105.5) == {"a", "b", "c"}


def test_failures_and_ejections_are_counted_by_engine() -> None:
    found = standing("a")
    found.failed("a", 101.0)
    found.failed("b", 101.0)

    assert found.failures == {"a": 2, "b": 1}
    assert found.ejections == {"a": 1, "b": 1}


def test_success_of_an_engine_that_never_failed_keeps_nothing() -> None:
    found = standing()
    found.sent("a", 1.0)
    found.succeeded("a", 1.0)

    assert found.is_plain


def test_what_was_long_ago_is_forgotten() -> None:
    found = OutlierDetection(EjectionSettings(failures=2, max_seconds=10.0, window=1.0))
    found.failed("a", 100.0)
    assert found.is_plain  # one failure is none
    found.succeeded("a", 104.0)
    assert found.breakers

    found.succeeded("a", 105.0)
    assert not found.breakers


def test_new_settings_hold_for_engines_that_have_failed_before() -> None:
    found = OutlierDetection(EjectionSettings(failures=5))
    found.failed("a", 1.0)
    found.set_settings(EjectionSettings(failures=2))

    assert found.failed("a", 1.0)


def test_engines_that_are_no_more_are_forgotten() -> None:
    found = standing("a", "b", drained=("a", "c"))
    found.forget_others(["b"])

    assert (found.drained, found.ejected) == (set(), {"b"})
    assert set(found.breakers) == set(found.failures) == set(found.ejections) == {"b"}
