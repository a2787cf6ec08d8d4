"""Which requests wait for an engine, and in which order they go on."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from tests.scheduling.tables import candidates

from inferway.errors import NoEndpointError, QueueFullError
from inferway.model import Candidates
from inferway.routing.limits.goodput_gate import GoodputGate
from inferway.routing.limits.queue import Waiter
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.goodput_admission import GoodputAdmission, GoodputAdmissionParameters


@dataclass
class World:
    """A gate before so many engines that are idle; `busy` engines of them do not count."""

    engines: int = 2
    busy: int = 0
    most_waiting: int = 1_000
    now: float = 0.0
    gate: GoodputGate = field(init=False)

    def __post_init__(self) -> None:
        admission = GoodputAdmission(GoodputAdmissionParameters(), ExpectedTtft())
        self.gate = GoodputGate(admission, self._candidates, self.most_waiting)

    def _candidates(self, model: str) -> Candidates:
        if model == "none":
            raise NoEndpointError("there is no engine")
        table = candidates(self.engines)
        table.others[: self.busy] = table.awaiting_first_token[: self.busy] = 1_000
        return table

    def wait(
        self, spare: float = 9.0, *, tenant: str = "", priority: int = 0, most: float = 1e9
    ) -> Waiter:
        return self.gate.wait("m", tenant, priority, self.now, most=most, spare=spare)

    def turns(self, later: float = 0.0) -> list[Waiter]:
        """Those that go on after so many more seconds, each once the one before is sent."""
        self.now += later
        went: list[Waiter] = []
        while new := self.gate.turns(self.now):
            went += new
            for each in new:
                self.gate.sent(each.lane)
        return went


def test_requests_go_on_while_an_engine_is_open_and_one_for_each_is_on_its_way() -> None:
    world = World(engines=2)

    assert [world.gate.enters("m", 0.0) for _ in range(3)] == [True, True, False]
    world.gate.sent("m")
    assert world.gate.enters("m", 0.0)


def test_requests_wait_while_no_engine_is_open_and_then_behind_those_that_wait() -> None:
    world = World(engines=1, busy=1)
    assert not world.gate.enters("m", 0.0)
    first = world.wait()
    assert world.turns() == []

    world.busy = 0

    assert not world.gate.enters("m", 0.0)
    assert world.turns() == [first]
    assert world.gate.enters("m", 0.0)


def test_a_request_for_a_model_without_engines_goes_on_to_be_told_so() -> None:
    assert World().gate.enters("none", 0.0)


def test_those_that_can_wait_the_least_go_first_and_those_that_are_late_last() -> None:
    world = World()
    late, patient, urgent = world.wait(1.0), world.wait(9.0), world.wait(5.0)

    assert world.turns(2.0) == [urgent, patient, late]
    assert (world.gate.admission.counts.went, world.gate.admission.counts.late) == (3, 1)


def test_one_that_is_late_from_the_start_goes_behind_those_that_come_later() -> None:
    world = World()
    late, in_time = world.wait(-1.0), world.wait(3.0)

    assert world.turns(1.0) == [in_time, late]


def test_a_higher_priority_goes_first_though_it_is_late() -> None:
    world = World()
    low, late = world.wait(5.0), world.wait(-1.0, priority=1)

    assert world.turns(1.0) == [late, low]


def test_tenants_take_turns() -> None:
    world = World()
    many = [world.wait(number, tenant="a") for number in (1.0, 2.0, 3.0)]
    one = world.wait(9.0, tenant="b")

    assert world.turns() == [many[0], one, many[1], many[2]]


def test_when_the_queue_is_full_one_that_is_late_makes_room_for_one_that_is_not() -> None:
    world = World(busy=2, most_waiting=2)
    late = world.wait(1.0)
    world.wait(9.0)
    assert world.turns(2.0) == []

    world.wait(9.0)

    [(refused, error)] = world.gate.expire(world.now)
    assert refused is late
    assert "2 requests wait" in str(error)
    with pytest.raises(QueueFullError):
        world.wait(9.0)
    assert world.gate.admission.counts.full == 2


def test_those_whose_time_is_over_are_refused() -> None:
    world = World(busy=2)
    impatient, patient = world.wait(most=1.0), world.wait(most=3.0)
    world.busy = 0

    [(refused, error)] = world.gate.expire(2.0)

    assert refused is impatient
    assert "within 1 s" in str(error)
    assert world.turns(2.0) == [patient]


def test_one_that_has_gone_away_gets_no_turn() -> None:
    world = World()
    gone, other = world.wait(1.0), world.wait(2.0)

    world.gate.withdraw(gone)
    world.gate.withdraw(gone)

    assert world.turns(1.5) == [other]
    assert world.gate.admission.counts.waiting == 0
