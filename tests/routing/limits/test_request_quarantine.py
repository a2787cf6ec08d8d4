"""Which requests are refused for the engines that were lost with them, and for how long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from inferway.errors import QuarantinedRequestError
from inferway.routing.limits.request_quarantine import LOOKS, EngineLosses, RequestQuarantine

BODY, OTHER = b'{"prompt":"a"}', b'{"prompt":"b"}'


@dataclass
class World:
    """Engines that are up or not, a clock, and what is to be called later."""

    up: set[str] = field(default_factory=set)
    now: float = 100.0
    seconds: float = 60.0
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    quarantine: RequestQuarantine = field(init=False)

    def __post_init__(self) -> None:
        self.quarantine = RequestQuarantine(
            lambda: self.seconds,
            lambda engine: engine in self.up,
            lambda: self.now,
            lambda seconds, call: self.due.append((self.now + seconds, call)),
        )

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [each for each in self.due if each[0] <= until]:
            first = min(due, key=lambda each: each[0])
            self.due.remove(first)
            self.now = first[0]
            first[1]()
        self.now = until

    def send(self, body: bytes = BODY, *, lost: str = "", failed: str = "") -> EngineLosses:
        losses = self.quarantine.losses(body, lambda: body)
        if lost:
            losses.lost(lost)
        if failed:
            losses.failed(failed)
        return losses

    def shown(self) -> dict[str, float]:
        return {family.name: family.samples[0].value for family in self.quarantine.families()}


def test_a_request_that_two_engines_had_when_they_were_lost_is_refused_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    caplog.set_level(logging.WARNING)

    world.send(lost="e0")
    assert not world.send(OTHER, lost="e1").are_too_many
    world.send(lost="e1")

    with pytest.raises(QuarantinedRequestError, match=r"2 engines .* for 60 s more .*digest"):
        world.send()
    world.send(OTHER)
    assert world.shown() == {
        "inferway_quarantined_requests": 1,
        "inferway_quarantine_refusals": 1,
    }
    [record] = caplog.records
    assert "was at the engines e0 and e1 when they were lost" in record.getMessage()
    world.wait(60)
    world.send()
    assert world.shown()["inferway_quarantined_requests"] == 0


def test_the_engines_of_all_tries_of_one_request_count_once_each() -> None:
    world = World()
    losses = world.send(lost="e0")

    losses.lost("e0")
    assert not losses.are_too_many
    losses.lost("e1")

    assert losses.are_too_many
    with pytest.raises(QuarantinedRequestError):
        world.send()


def test_an_engine_that_is_up_after_all_does_not_count() -> None:
    world = World(up={"e0"})
    world.send(lost="e0")
    world.send(lost="e1")

    world.wait(sum(LOOKS) - 1)
    with pytest.raises(QuarantinedRequestError):
        world.send()
    world.wait(1)

    world.send()
    world.send(lost="e2")
    with pytest.raises(QuarantinedRequestError):
        world.send()


def test_an_engine_that_answers_500_counts_once_it_is_down() -> None:
    world = World(up={"e0", "e1"})
    world.send(failed="e0")
    world.send(failed="e1")
    world.send()

    world.wait(LOOKS[0])
    world.up.clear()
    world.send()
    world.wait(LOOKS[1])

    with pytest.raises(QuarantinedRequestError):
        world.send()


def test_an_engine_that_answers_500_and_stays_up_does_not_count() -> None:
    world = World(up={"e0", "e1"})
    world.send(failed="e0")
    world.send(failed="e1")

    world.wait(sum(LOOKS))

    assert not world.due
    world.send(lost="e2")
    world.send()


def test_a_request_that_is_answered_to_the_end_is_suspected_no_more() -> None:
    world = World()
    losses = world.send(lost="e0")

    losses.answered()

    world.send(lost="e1")
    world.send()


def test_no_digest_is_made_while_no_request_is_suspected() -> None:
    made: list[bytes] = []

    def body() -> bytes:
        made.append(BODY)
        return BODY

    world = World()
    world.quarantine.losses(BODY, body).answered()
    assert not made
    world.quarantine.losses(BODY, body).lost("e0")

    assert made == [BODY]


def test_processes_that_tell_each_other_refuse_what_they_lost_engines_with_together() -> None:
    one, other = World(up={"e2"}), World()
    one.quarantine.tell, other.quarantine.tell = other.quarantine.hear, one.quarantine.hear

    one.send(lost="e0")
    other.send(lost="e1")

    for world in (one, other):
        with pytest.raises(QuarantinedRequestError):
            world.send()
    shown = [world.shown()["inferway_quarantined_requests"] for world in (one, other)]
    assert shown == [0, 1], "one of them counts it"
    one.send(OTHER, lost="e2")
    other.send(OTHER, lost="e3")
    one.wait(sum(LOOKS))
    other.send(OTHER)  # e2 was up
    other.quarantine.losses(OTHER, lambda: OTHER).answered()
    one.send(OTHER, lost="e4")
    one.send(OTHER)


def test_with_no_seconds_nothing_is_refused() -> None:
    world = World(seconds=0)

    for engine in ("e0", "e1", "e2"):
        world.send(lost=engine)

    assert not world.due
    world.send()


def test_what_is_remembered_is_bounded() -> None:
    world = World()

    for number in range(5000):
        world.send(b"%d" % number, lost="e0")

    world.send(b"0", lost="e1")
    world.send(b"0")
    world.send(b"4999", lost="e1")
    with pytest.raises(QuarantinedRequestError):
        world.send(b"4999")
