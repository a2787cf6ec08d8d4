"""Who waits while engines are nearly full, and in which order they go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tests.scheduling.tables import candidates

from inferway.config import FlowSettings
from inferway.errors import NoEndpointError, QueueFullError
from inferway.model import Candidates
from inferway.routing.limits.concurrency_limiter import ConcurrencyLimiter
from inferway.routing.limits.queue import Waiter
from inferway.routing.limits.saturation_gate import SaturationGate
from inferway.scheduling.flow_control.flow import FlowControl, PriorityBand
from inferway.scheduling.flow_control.policies import (
    EarliestDeadline,
    LeastAttainedService,
    ProgramAwareParameters,
    RoundRobin,
    SloDeadline,
)
from inferway.scheduling.flow_control.usage_limits import PriorityHoldback
from inferway_llmd.scheduling.concurrency import ConcurrencyDetector

FREE = FlowSettings(in_flight=None)
FAIR = PriorityBand(fairness=RoundRobin())


@dataclass
class Turnstile:
    """One of a model `m` with two endpoints that take so many requests each."""

    flow: FlowControl
    settings: FlowSettings = FREE
    endpoints: Candidates = field(default_factory=lambda: candidates(2))
    elsewhere: float = 0.0  # requests at endpoints of the model that get no new ones

    def __post_init__(self) -> None:
        self.gate = SaturationGate(self.flow, self._endpoints)
        self.limiter = ConcurrencyLimiter(self.settings, lambda _: ["a", "b"], self.gate)

    def _endpoints(self, model: str) -> tuple[Candidates, float]:
        if model != "m":
            raise NoEndpointError("none is there")
        return self.endpoints, float(self.endpoints.in_flight.sum()) + self.elsewhere

    def wait(
        self,
        tenant: str = "t",
        priority: int = 0,
        came: float = 0.0,
        seconds: float = 60.0,
        ttft: float | None = None,
    ) -> Waiter:
        waiter = Waiter("m", tenant, priority, came + seconds, came)
        self.gate.note(priority)
        self.gate.order(waiter, ttft)
        self.limiter.wait(waiter)
        return waiter

    def ends(self, number: int = 1) -> None:
        for _ in range(number):
            self.limiter.leave("", "m")

    def turns(self, now: float = 1.0) -> list[Waiter]:
        return [waiter for waiter, _ in self.limiter.turns(now)]


def limiter(
    each: int = 2, band: PriorityBand = FAIR, settings: FlowSettings = FREE, **flow: object
) -> Turnstile:
    control = FlowControl(ConcurrencyDetector(each), others=band, **flow)  # type: ignore[arg-type]
    return Turnstile(control, settings)


def full(each: int = 1, **given: object) -> Turnstile:
    made = limiter(each, **given)  # type: ignore[arg-type]
    assert [made.limiter.enter("m") for _ in range(2 * each)] == [""] * 2 * each
    return made


def order(made: Turnstile, waiters: Sequence[Waiter]) -> list[int]:
    """Which of them goes on, one ending after another."""
    went = []
    for _ in waiters:
        made.ends()
        went += made.turns()
    return [waiters.index(waiter) for waiter in went]


def test_so_many_enter_as_saturate_the_engines_before_the_table_shows_them() -> None:
    made = limiter(each=2)

    assert [made.limiter.enter("m") for _ in range(5)] == ["", "", "", "", None]


def test_what_the_table_shows_is_not_counted_twice() -> None:
    made = limiter(each=2)
    for _ in range(3):
        made.limiter.enter("m")
    made.endpoints.in_flight[:] = (2, 1)

    assert made.gate.saturation("m") == 0.75


def test_what_runs_at_a_drained_engine_takes_no_place_at_the_others() -> None:
    made = limiter(each=2)
    for _ in range(3):
        made.limiter.enter("m")
    made.endpoints = candidates(1, in_flight=[1])
    made.elsewhere = 2.0

    assert made.gate.saturation("m") == 0.5


def test_who_waits_goes_on_when_one_has_ended() -> None:
    made = full()
    first, second = made.wait(), made.wait()
    assert made.turns() == []

    made.ends()

    assert made.turns() == [first]
    made.ends(2)
    assert made.turns() == [second]


def test_a_model_without_engines_is_not_waited_for() -> None:
    assert limiter().limiter.enter("n") == ""


def test_the_limits_of_the_settings_hold_beside_it() -> None:
    made = limiter(each=9, settings=FlowSettings(in_flight=1))

    assert [made.limiter.enter("m") for _ in range(2)] == ["", None]


def test_the_fuller_of_prefill_and_decode_counts() -> None:
    made = limiter(each=4)
    roles = ["prefill", "decode", "encode", "prefill-decode"]
    made.endpoints = candidates(labels=[{"llm-d.ai/role": role} for role in roles])
    made.endpoints.in_flight[:] = (4, 0, 9, 2)

    assert made.gate.saturation("m") == pytest.approx((4 + 2) / 2 / 4)


def test_a_priority_that_is_held_back_lets_others_pass() -> None:
    made = limiter(
        each=5,
        bands={1: FAIR, 0: FAIR},
        limits=PriorityHoldback(min_ceiling=0.5, max_ceiling=1.0),
    )
    entered = [made.limiter.enter("m", 0) for _ in range(6)]
    low = made.wait(priority=0)
    high = made.wait(priority=1)

    assert entered == [""] * 5 + [None]
    assert made.turns() == [high]
    made.ends(2)
    assert made.turns() == [low]


@pytest.mark.parametrize(
    ("band", "given", "expected"),
    [
        # fcfs: all tenants in one order, or in turns
        (PriorityBand(), [("a", 60, None), ("a", 60, None), ("b", 60, None)], [0, 1, 2]),
        (FAIR, [("a", 60, None), ("a", 60, None), ("b", 60, None)], [0, 2, 1]),
        # edf: by the time that is left to wait
        (
            PriorityBand(EarliestDeadline()),
            [("a", 60, None), ("b", 5, None), ("a", float("inf"), None), ("a", 30, None)],
            [1, 3, 0, 2],
        ),
        (
            PriorityBand(EarliestDeadline(), RoundRobin()),
            [("a", 60, None), ("a", 5, None), ("b", 40, None)],
            [1, 2, 0],
        ),
        # slo-deadline: by when the first token should be there
        (
            PriorityBand(SloDeadline()),
            [("a", 60, None), ("a", 60, 2.0), ("b", 60, 0.1)],
            [2, 1, 0],
        ),
    ],
)
def test_the_band_says_the_order(
    band: PriorityBand, given: Sequence[tuple[str, float, float | None]], expected: list[int]
) -> None:
    made = full(band=band)
    waiters = [made.wait(tenant, seconds=seconds, ttft=ttft) for tenant, seconds, ttft in given]

    assert order(made, waiters) == expected


def test_who_has_had_least_of_late_goes_first() -> None:
    policy = LeastAttainedService(ProgramAwareParameters(las_half_life_seconds=0.0))
    policy.served("a", 1000, 0.0)
    policy.served("b", 10, 0.0)
    made = full(band=PriorityBand(fairness=policy))
    waiters = [made.wait("a"), made.wait("a"), made.wait("b"), made.wait("c", came=0.5)]

    assert order(made, waiters) == [2, 3, 0, 1]  # b has waited for longer than c


def test_a_band_has_room_for_so_many() -> None:
    made = full(bands={0: PriorityBand(fairness=RoundRobin(), max_requests=2)})
    kept, noisy = made.wait("a"), made.wait("a")
    high = made.wait("a", priority=5)

    quiet = Waiter("m", "b", 0, 60.0, 0.0)
    assert made.limiter.wait(quiet) is noisy
    with pytest.raises(QueueFullError):
        made.wait("a")
    made.ends(2)
    assert made.turns() == [high, kept]
    made.ends(2)
    assert made.turns() == [quiet]


def test_the_queue_has_room_for_so_many() -> None:
    made = full(max_requests=1)
    low = made.wait("a", priority=-1)

    assert made.limiter.wait(Waiter("m", "b", 0, 60.0, 0.0)) is low


@pytest.mark.parametrize(
    ("flow", "band", "seconds"),
    [(None, None, 7.0), (9.0, None, 9.0), (9.0, 3.0, 3.0), (9.0, float("inf"), float("inf"))],
)
def test_how_long_one_waits(flow: float | None, band: float | None, seconds: float) -> None:
    made = limiter(
        band=PriorityBand(seconds=band),
        settings=FlowSettings(queue_seconds=7.0),
        seconds=flow,
    )

    assert made.limiter.most_seconds(0) == seconds


def test_what_has_ended_leaves_nothing_behind() -> None:
    made = full()
    made.ends(2)

    assert made.gate.in_flight == {"m": 0}
    assert made.gate.saturations() == {"m": 0.0}
