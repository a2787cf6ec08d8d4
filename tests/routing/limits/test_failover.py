"""Which engine is next, and what is counted of it."""

from __future__ import annotations

from time import monotonic

from tests.slots import NotingSlot

from inferway.config import EjectionSettings, RetrySettings
from inferway.model import Endpoint, Target
from inferway.routing.limits.failover import Failover, FailoverPolicy, Retries
from inferway.routing.limits.outlier_detection import OutlierDetection

TARGETS = tuple(
    Target(Endpoint(f"e{i}", f"http://e{i}", i), 1.0, 0, 0) for i in range(3)
)  # best first


def traffic(attempts: int = 3, floor: int = 10) -> FailoverPolicy:
    retries = Retries(RetrySettings(attempts=attempts, floor=floor))
    return FailoverPolicy(monotonic, OutlierDetection(EjectionSettings(failures=1)), retries)


def tried(one: FailoverPolicy, slot: NotingSlot | None = None) -> list[str]:
    """The engines of a request that each of them fails."""
    attempts = Failover(TARGETS, one, slot)
    engines = [attempts.engine]
    attempts.failed()
    while (target := attempts.another()) is not None:
        engines.append(target.endpoint.engine)
        attempts.failed()
    assert (attempts.engine, attempts.number) == (engines[-1], len(engines))
    attempts.over()
    return engines


def test_each_target_is_tried_once_in_order() -> None:
    one = traffic()

    assert tried(one) == ["e0", "e1", "e2"]
    assert (one.retries.made, one.retries.active, one.retries.retrying) == (2, 0, 0)


def test_no_more_than_are_configured_are_tried() -> None:
    assert tried(traffic(attempts=2)) == ["e0", "e1"]


def test_no_other_is_tried_without_a_budget() -> None:
    one = traffic(floor=0)

    assert tried(one) == ["e0"]
    assert (one.retries.made, one.retries.refused) == (0, 1)


def test_who_is_full_is_passed_over_and_the_place_moves_and_is_left_once() -> None:
    room = NotingSlot({"e1"})

    assert tried(traffic(), room) == ["e0", "e2"]
    assert (room.moves, room.left) == (["e0", "e2"], 1)


def test_who_is_drained_is_passed_over() -> None:
    one = traffic()
    one.standing.drained.add("e1")

    assert tried(one) == ["e0", "e2"]


def test_a_try_fails_once_and_does_not_succeed_then() -> None:
    one = traffic()
    attempts = Failover(TARGETS, one, None)

    attempts.failed()
    attempts.failed()
    attempts.succeeded()
    attempts.over()

    assert one.standing.failures == {"e0": 1}
    assert one.standing.ejected == {"e0"}


def test_only_some_statuses_are_tried_elsewhere() -> None:
    one = traffic()
    attempts = Failover(TARGETS, one, None)

    assert attempts.instead_of(500) is None
    assert attempts.instead_of(503) == TARGETS[1]
    assert attempts.engine == "e1"
    attempts.over()


def test_another_leg_has_tries_and_a_place_of_its_own() -> None:
    one, slot = traffic(), NotingSlot({"e0"})
    attempts = Failover(TARGETS[2:], one, slot)

    beside = attempts.beside(TARGETS)
    assert beside is not None
    assert (beside.engine, attempts.engine) == ("e1", "e2")
    beside.failed()
    beside.over()

    assert one.standing.failures == {"e1": 1}
    assert (slot.moves, slot.left, one.retries.active) == (["e2"], 0, 1)
    attempts.over()
    assert one.retries.active == 0


def test_no_other_leg_where_nobody_has_room() -> None:
    one = traffic()
    attempts = Failover(TARGETS, one, NotingSlot({"e1", "e2"}))

    assert attempts.beside(TARGETS[1:]) is None
    attempts.over()
