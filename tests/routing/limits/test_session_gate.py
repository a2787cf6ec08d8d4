"""Which turns wait because their session is new."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import QueueFullError
from inferway.routing.limits.queue import Waiter
from inferway.routing.limits.session_gate import SessionGate
from inferway.scheduling.session_admission import SessionAdmission, SessionAdmissionParameters

PARAMETERS = SessionAdmissionParameters(cache_share=1.0, max_wait_seconds=100.0)
TOKENS = 1_000.0  # that each session holds


@dataclass
class World:
    """A gate of a model `m` whose caches hold so many sessions."""

    sessions: float
    known: bool = True
    most_waiting: int = 1_000
    now: float = 0.0
    gate: SessionGate = field(init=False)

    def __post_init__(self) -> None:
        self.gate = SessionGate(SessionAdmission(PARAMETERS), self._cache, self.most_waiting)
        self.live = self.gate.admission.of("m")
        self.live.first_tokens = TOKENS

    def _cache(self, model: str) -> dict[str, float]:
        assert model == "m"
        return {"e0": self.sessions * TOKENS} if self.known else {}

    def enters(self, name: bytes) -> bool:
        """A turn comes; return whether it goes on, and is at an engine."""
        if not self.gate.enters("m", name, self.now):
            return False
        if name:
            self.live.begin(name, TOKENS, "e0", self.now)
        return True

    def wait(
        self, name: bytes, tenant: str = "", priority: int = 0, seconds: float = 1e9
    ) -> Waiter:
        waiter = Waiter("m", tenant, priority, self.now + seconds, self.now)
        self.gate.wait(waiter, name)
        return waiter

    def turns(self, later: float = 0.0) -> list[Waiter]:
        self.now += later
        return self.gate.turns(self.now)

    def over(self, name: bytes) -> None:
        """A session's last answer has ended, and it is known not to come back."""
        self.live.end(name, None, self.now)
        self.live.alive[name].since = self.now - 1e6


def test_new_sessions_enter_while_there_is_room_and_then_wait() -> None:
    world = World(sessions=2)

    assert world.enters(b"a")
    assert world.enters(b"b")
    assert not world.enters(b"c")


def test_below_the_edge_nothing_waits() -> None:
    world = World(sessions=100)

    assert all(world.enters(b"%d" % number) for number in range(100))
    assert (world.gate.queue.size, world.gate.num_waited) == (0, 0)


def test_a_session_that_is_alive_and_a_request_of_none_go_on_at_once() -> None:
    world = World(sessions=1)
    world.enters(b"a")
    world.wait(b"b")

    assert world.enters(b"a")
    assert world.enters(b"")


def test_where_nothing_is_known_of_caches_nobody_waits() -> None:
    world = World(sessions=1, known=False)

    assert all(world.enters(b"%d" % number) for number in range(10))


def test_one_goes_on_when_another_is_over_and_nobody_passes_it() -> None:
    world = World(sessions=1)
    world.enters(b"a")
    first = world.wait(b"b")
    assert world.turns() == []

    world.over(b"a")
    assert not world.enters(b"c")  # the other came first
    world.wait(b"c")

    assert world.turns() == [first]


def test_all_turns_of_a_session_go_on_together() -> None:
    world = World(sessions=1)
    world.enters(b"a")
    ours = [world.wait(b"b"), world.wait(b"b")]
    world.wait(b"c")
    world.over(b"a")

    assert world.turns() == ours
    assert world.gate.queue.size == 1


def test_tenants_take_turns_whatever_each_has_sent() -> None:
    world = World(sessions=1)
    world.enters(b"a")
    waiters = [world.wait(b"many %d" % number, "many") for number in range(4)]
    few = world.wait(b"few", "few")
    went: list[Waiter] = []
    last = b"a"
    for _ in range(2):
        world.over(last)
        (waiter,) = world.turns(later=1.0)
        went.append(waiter)
        last = next(reversed(world.live.alive))

    assert went == [waiters[0], few]


def test_higher_priorities_go_first() -> None:
    world = World(sessions=1)
    world.enters(b"a")
    world.wait(b"low")
    high = world.wait(b"high", priority=1)
    world.over(b"a")

    assert world.turns() == [high]


def test_the_one_that_has_waited_for_long_goes_on_without_room() -> None:
    world = World(sessions=1)
    world.enters(b"a")
    first, second = world.wait(b"b"), world.wait(b"c")

    assert world.turns(later=99.0) == []
    assert world.turns(later=1.0) == [first]
    assert world.turns(later=5.0) == []  # one in a tenth of the time
    assert world.turns(later=5.0) == [second]
    assert world.gate.num_overdue == 2


def test_clients_that_do_not_wait_any_longer_are_told_and_leave_nothing() -> None:
    world = World(sessions=1)
    world.enters(b"a")
    waiter = world.wait(b"b", seconds=5.0)
    world.now += 5.0

    ((late, error),) = world.gate.expire(world.now)

    assert (late, error.retry_after) == (waiter, 30)
    assert world.gate.queue.size == 0
    assert list(world.live.alive) == [b"a"]


def test_no_more_wait_than_may() -> None:
    world = World(sessions=1, most_waiting=2)
    world.enters(b"a")
    world.wait(b"b")
    world.wait(b"c")

    with pytest.raises(QueueFullError, match="2 turns of new ones wait"):
        world.wait(b"d")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["comes", "over", "leaves", "turns"]), st.integers(0, 7), st.floats(0, 60)
    ),
    max_size=80,
)


@given(STEPS, st.integers(1, 4))
def test_whoever_comes_goes_on_or_leaves_and_nothing_is_left_behind(
    steps: list[tuple[str, int, float]], room: int
) -> None:
    world = World(sessions=room)
    came: list[Waiter] = []
    gone: list[Waiter] = []
    for what, number, later in steps:
        world.now += later
        name = b"%d" % number
        if what == "comes" and not world.enters(name):
            came.append(world.wait(name, tenant=str(number % 2)))
        elif what == "over" and name in world.live.alive:
            world.over(name)
        elif what == "leaves" and number < len(came):
            world.gate.withdraw(came[number])
            gone.append(came[number])
        elif what == "turns":
            gone += world.turns()
        waiting = [waiter for waiter in came if waiter not in gone]
        assert world.gate.queue.size == len(waiting)
    for _ in range(len(came)):  # more than anybody waits
        gone += world.turns(later=101.0)

    assert set(gone) >= set(came)
    assert world.gate.queue.size == 0
