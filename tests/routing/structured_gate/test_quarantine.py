from __future__ import annotations

from tests.routing.structured_gate.doubles import Clock

from inferway.routing.structured_gate.quarantine import INCIDENT_SECONDS, InFlight, Quarantine


def test_the_second_engine_that_is_lost_to_a_spec_is_the_last_until_its_time_is_over() -> None:
    clock = Clock(100.0)
    quarantine = Quarantine(60, clock)

    quarantine.strike("k")
    assert quarantine.refusal("k") is None
    quarantine.strike("k")

    assert quarantine.refusal("k") == "2 engines were lost while they worked on it alone"
    assert quarantine.refusal("other") is None
    assert len(quarantine) == 1
    clock.now = 160.0
    assert quarantine.refusal("k") is None
    assert len(quarantine) == 0


def test_a_spec_that_was_answered_is_not_to_blame() -> None:
    quarantine = Quarantine(60, Clock())
    quarantine.strike("k")
    quarantine.answered("k")

    quarantine.strike("k")
    quarantine.strike("k")

    assert quarantine.refusal("k") is None


def test_what_is_remembered_is_bounded() -> None:
    quarantine = Quarantine(60, Clock(), most=3)

    for number in range(10):
        quarantine.strike(f"{number}")
        quarantine.strike(f"{number}")
        quarantine.answered(f"answered {number}")

    assert len(quarantine) == 3
    assert quarantine.refusal("9") is not None
    assert quarantine.is_proven("answered 9")
    assert not quarantine.is_proven("answered 0")


def test_a_spec_is_alone_when_every_request_there_has_it() -> None:
    at = InFlight()
    at.sent("e0", "k")
    at.sent("e0", "k")

    assert at.was_alone("e0", "k", num_requests=2, now=0.0)


def test_another_spec_or_a_request_without_one_beside_it_takes_the_blame_off_it() -> None:
    at = InFlight()
    at.sent("e0", "k")
    at.sent("e1", "k")
    at.sent("e1", "other")

    assert not at.was_alone("e0", "k", num_requests=2, now=0.0)
    assert not at.was_alone("e1", "k", num_requests=2, now=0.0)


def test_requests_that_fail_after_the_first_one_of_a_loss_are_not_judged() -> None:
    at = InFlight()
    at.sent("e0", "other")
    at.sent("e0", "k")
    assert not at.was_alone("e0", "other", num_requests=2, now=0.0)
    at.over("e0", "other")

    assert not at.was_alone("e0", "k", num_requests=1, now=0.1)
    assert at.was_alone("e0", "k", num_requests=1, now=0.1 + INCIDENT_SECONDS)


def test_what_has_left_an_engine_is_not_there() -> None:
    at = InFlight()
    at.sent("e0", "k")
    at.over("e0", "k")
    at.over("e0", "k")

    assert not at.was_alone("e0", "k", num_requests=0, now=0.0)
