"""So many at a time; who waits, how long, and who is refused."""

from __future__ import annotations

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inferway.config import FlowSettings
from inferway.errors import QueueFullError, WaitTooLongError
from inferway.routing.limits.concurrency_limiter import ConcurrencyLimiter
from inferway.routing.limits.queue import Waiter

ENGINES = {"m": ["a", "b"], "n": ["b", "c"]}


def limiter(
    in_flight: int | None = 2, each: int | None = None, queue: int = 10
) -> ConcurrencyLimiter:
    settings = FlowSettings(in_flight=in_flight, engine_in_flight=each, queue=queue)
    return ConcurrencyLimiter(settings, lambda lane: ENGINES[lane])


def waiter(
    tenant: str = "t", priority: int = 0, lane: str = "m", came: float = 0.0, seconds: float = 60.0
) -> Waiter:
    return Waiter(lane, tenant, priority, deadline=came + seconds, came=came)


def test_so_many_enter_and_the_next_one_waits() -> None:
    full = limiter(2)

    assert [full.enter("m") for _ in range(3)] == ["", "", None]


def test_who_waits_for_suspended_engines_has_its_turn_once_one_is_so_no_more() -> None:
    suspended = {"m"}
    held = ConcurrencyLimiter(
        FlowSettings(), lambda lane: ENGINES[lane], is_suspended=suspended.__contains__
    )
    for lane in "mn":
        held.wait(waiter(lane=lane))

    assert [each.lane for each, _ in held.turns(1.0)] == ["n"]
    suspended.clear()
    assert [each.lane for each, _ in held.turns(2.0)] == ["m"]


def test_without_limits_all_enter() -> None:
    free = limiter(None)

    assert [free.enter("m") for _ in range(1000)] == [""] * 1000


def test_each_engine_takes_so_many() -> None:
    full = limiter(None, each=1)

    assert sorted([full.enter("m") or "", full.enter("m") or ""]) == ["a", "b"]
    assert full.enter("m") is None
    assert full.enter("n") == "c"


def test_whose_place_is_left_is_the_next_ones() -> None:
    full = limiter(1)
    full.enter("m")
    first, second = waiter(), waiter()
    full.wait(first)
    full.wait(second)
    assert full.turns(1.0) == []

    full.leave("")

    assert full.turns(1.0) == [(first, "")]
    assert full.turns(1.0) == []


def test_nobody_enters_past_one_who_waits_for_the_same_model() -> None:
    full = limiter(1)
    full.enter("m")
    full.wait(waiter())
    full.leave("")

    assert full.enter("m") is None


def test_who_waits_for_a_full_engine_holds_up_no_other_model() -> None:
    full = limiter(10, each=1)
    full.enter("m")
    full.enter("m")
    full.wait(waiter(lane="m"))

    assert full.enter("n") == "c"


def test_a_place_moves_with_its_request() -> None:
    full = limiter(10, each=1)
    place = full.enter("m")
    assert place == "a"
    assert full.takes("b", place)
    full.move(place, "b")

    assert full.engines == {"b": 1}
    assert not full.takes("b")
    assert full.takes("b", "b")  # it is there itself
    full.leave("b")
    assert (full.engines, full.in_flight) == ({}, 0)


def test_who_wants_a_model_without_engines_goes_on_to_be_told_so() -> None:
    full = ConcurrencyLimiter(FlowSettings(engine_in_flight=1), lambda _: [])

    assert full.enter("m") == ""
    full.leave("")
    assert (full.engines, full.in_flight) == ({}, 0)


def test_lower_limits_let_nobody_in_until_they_hold() -> None:
    full = limiter(3)
    for _ in range(3):
        full.enter("m")
    full.set_settings(FlowSettings(in_flight=1))
    full.wait(waiter())
    full.leave("")
    full.leave("")
    assert full.turns(0.0) == []

    full.leave("")
    assert len(full.turns(0.0)) == 1


def test_engines_are_full_by_the_limits_of_now() -> None:
    full = limiter(None, each=2)
    for _ in range(3):
        full.enter("m")
    assert full.full == {"a"}

    full.set_settings(FlowSettings(engine_in_flight=1))
    assert full.full == {"a", "b"}
    full.set_settings(FlowSettings(engine_in_flight=None))
    assert full.full == set()


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    full = limiter(1, queue=1)
    full.enter("m")
    full.wait(waiter())

    with pytest.raises(QueueFullError) as refused:
        full.wait(waiter())

    assert str(refused.value) == "1 requests are with the engines and 1 wait; try again later"
    assert refused.value.retry_after == 1
    assert (full.stats.full, full.queue.size) == (1, 1)


def test_without_a_queue_nobody_waits() -> None:
    full = limiter(1, queue=0)
    full.enter("m")

    with pytest.raises(QueueFullError):
        full.wait(waiter())


def test_a_full_queue_makes_room_for_a_higher_priority() -> None:
    full = limiter(1, queue=1)
    full.enter("m")
    low, high = waiter(), waiter(priority=1)
    full.wait(low)

    assert full.wait(high) is low
    assert list(full.queue) == [high]


def served_every(seconds: float) -> ConcurrencyLimiter:
    """One place, whose queue has been getting shorter at this pace, and two who wait."""
    full = limiter(1, queue=100)
    full.enter("m")
    for _ in range(6):
        full.wait(waiter())
    for turn in range(1, 5):
        full.leave("")
        assert len(full.turns(turn * seconds)) == 1
    return full


def test_who_would_wait_for_too_long_is_refused_at_once() -> None:
    full = served_every(2.0)

    with pytest.raises(WaitTooLongError) as refused:
        full.wait(waiter(came=8.0, seconds=5.9))
    full.wait(waiter(came=8.0, seconds=6.1))

    assert str(refused.value) == "it would wait for about 6.0 s, longer than it may"
    assert refused.value.retry_after == 6


def test_a_pace_that_has_stopped_counts_as_slower() -> None:
    full = served_every(2.0)

    with pytest.raises(WaitTooLongError):
        full.wait(waiter(came=38.0, seconds=20.0))


def test_the_pace_is_forgotten_when_nobody_waits() -> None:
    full = served_every(2.0)
    for _ in range(2):
        full.leave("")
        full.turns(10.0)
    full.wait(waiter(came=1000.0, seconds=0.1))

    assert full.queue.size == 1


def test_who_has_waited_for_too_long_is_put_out() -> None:
    full = limiter(1)
    full.enter("m")
    patient, hasty = waiter(seconds=60), waiter(seconds=2)
    full.wait(patient)
    full.wait(hasty)

    assert full.expire(1.9) == []
    [(late, error)] = full.expire(2.0)

    assert late is hasty
    assert str(error) == "no engine had room for it within 2 s"
    assert list(full.queue) == [patient]


class Requests(RuleBasedStateMachine):
    """Many requests, in any order of what may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.engines = {"m": ["a", "b"], "n": ["b", "c"]}
        self.full = ConcurrencyLimiter(
            FlowSettings(in_flight=3, engine_in_flight=2, queue=4), lambda lane: self.engines[lane]
        )
        self.waiting: list[Waiter] = []
        self.inside: list[str] = []
        self.now = 0.0

    @rule(
        lane=st.sampled_from(["m", "n"]),
        tenant=st.sampled_from(["x", "y"]),
        priority=st.integers(-1, 1),
        seconds=st.sampled_from([0.5, 3.0, 50.0]),
    )
    def comes(self, lane: str, tenant: str, priority: int, seconds: float) -> None:
        place = self.full.enter(lane)
        if place is not None:
            self.inside.append(place)
            return
        one = waiter(tenant, priority, lane, self.now, seconds)
        try:
            victim = self.full.wait(one)
        except (QueueFullError, WaitTooLongError):
            return
        self.waiting.append(one)
        if victim is not None:
            self.waiting.remove(victim)

    @precondition(lambda self: self.inside)
    @rule(number=st.integers(0, 9))
    def ends(self, number: int) -> None:
        self.full.leave(self.inside.pop(number % len(self.inside)))
        self.turns()

    @precondition(lambda self: self.inside)
    @rule(number=st.integers(0, 9), engine=st.sampled_from(["a", "b", "c"]))
    def goes_elsewhere(self, number: int, engine: str) -> None:
        number %= len(self.inside)
        if self.full.takes(engine, self.inside[number]):
            self.full.move(self.inside[number], engine)
            self.inside[number] = engine
            self.turns()

    @precondition(lambda self: self.waiting)
    @rule(number=st.integers(0, 9))
    def gives_up(self, number: int) -> None:
        self.full.withdraw(self.waiting.pop(number % len(self.waiting)))

    @rule(seconds=st.sampled_from([0.1, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for late, _ in self.full.expire(self.now):
            self.waiting.remove(late)
        self.turns()

    @rule(there=st.booleans())
    def an_engine_comes_or_goes(self, there: bool) -> None:
        self.engines["m"] = ["a", "b"] if there else ["b"]
        self.turns()

    def turns(self) -> None:
        for one, place in self.full.turns(self.now):
            self.waiting.remove(one)
            self.inside.append(place)

    @invariant()
    def no_more_than_the_limits_are_in_flight(self) -> None:
        assert self.full.in_flight == len(self.inside) <= 3
        assert self.full.engines == {
            engine: self.inside.count(engine) for engine in "abc" if engine in self.inside
        }
        assert all(count <= 2 for count in self.full.engines.values())
        assert self.full.full == {name for name, n in self.full.engines.items() if n == 2}

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        assert sorted(self.full.queue, key=id) == sorted(self.waiting, key=id)
        assert len(self.waiting) <= 4
        if self.full.in_flight < 3:
            for one in self.waiting:
                assert all(self.full.engines.get(e, 0) == 2 for e in self.engines[one.lane])

    @invariant()
    def nothing_is_kept_of_those_who_are_gone(self) -> None:
        assert set(self.full._paces) == {one.lane for one in self.waiting}


TestRequests = Requests.TestCase
TestRequests.settings = hypothesis_settings(max_examples=150, stateful_step_count=60)
