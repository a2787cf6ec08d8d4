"""A run of agents: the simulation of `policies.simulate`, with an admission that may let turns wait
at the gateway, and an end in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Protocol

from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.plugin import ProfileHandler
from inferway_bench.policies.engine import Engine, Job, Leg
from inferway_bench.policies.gateway import Policy
from inferway_bench.policies.requests import Outcome
from inferway_bench.policies.simple import chosen
from inferway_bench.policies.simulate import FleetSpec, MakePolicy, Simulation, World
from inferway_bench.sessions.agents import Agents

_WAKE = -1  # the index of an arrival that is none


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """What has become of a turn, and when."""

    index: int
    now: float
    row: int = 0  # the engine it is at
    cached_tokens: int = 0  # of its prompt, once its answer has ended


class Admission(Protocol):
    """Says when a turn goes on to the engines, and perhaps to which one. Time is virtual."""

    def arrives(self, turn: TurnEvent) -> None:
        """A turn comes."""

    def goes(self, now: float) -> Iterator[tuple[int, int | None]]:
        """Yield the turns that go on now, each with its engine; None: the policy chooses."""

    def sent(self, turn: TurnEvent) -> None:
        """A turn has gone to that engine."""

    def ended(self, turn: TurnEvent) -> None:
        """Its answer has ended."""

    def wakes(self) -> float:
        """Return when `goes` is to be asked again, whatever happens before; infinite: never."""


MakeAdmission = Callable[[Agents, Sequence[Engine], Policy], Admission]


@dataclass(slots=True)
class Everyone:
    """Everyone goes on at once."""

    _came: list[int] = field(default_factory=list)

    def arrives(self, turn: TurnEvent) -> None:
        self._came.append(turn.index)

    def goes(self, now: float) -> Iterator[tuple[int, int | None]]:
        del now
        while self._came:
            yield self._came.pop(), None

    def sent(self, turn: TurnEvent) -> None: ...
    def ended(self, turn: TurnEvent) -> None: ...
    def wakes(self) -> float:
        return math.inf


@dataclass(frozen=True, slots=True)
class Pinning:
    """Chooses the engine that an admission has named, else as `chooser` does."""

    chooser: ProfileHandler
    rows: dict[int, int]

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        row = self.rows.pop(int(request.request_id), None)
        if row is None:
            return self.chooser.choose(request, candidates)
        return chosen(candidates, row)


class AgentsRun(Simulation):
    """One run's state."""

    def __init__(
        self, agents: Agents, fleet: FleetSpec, make_policy: MakePolicy, make: MakeAdmission,
        seconds: float, seed: int,
    ) -> None:  # fmt: skip
        rows: dict[int, int] = {}
        made: list[Policy] = []

        def pinning(world: World) -> Policy:
            policy = make_policy(world)
            made.append(policy)
            return replace(policy, chooser=Pinning(policy.chooser, rows))

        super().__init__(agents.workload, agents.workload.own_rate, fleet, pinning, seed)
        starts = agents.workload.columns.start
        self._arrivals = sorted((float(starts[index]), index) for _, index in self._arrivals)
        self._pinned = rows
        (policy,) = made
        self._admission = make(agents, self._engines, policy)
        self._seconds = seconds
        self._wakes = math.inf

    def run(self) -> Outcome:
        """Return what became of the turns; of those that did not end in time, nothing."""
        return super().run()

    def _check_ended(self) -> None: ...

    def _arrive(self) -> None:
        if self._arrivals[0][1] == _WAKE:
            self.now, _ = heappop(self._arrivals)
            self._wakes = math.inf
            self._go()
            return
        super()._arrive()

    def _dispatch(self, index: int, arrived: float) -> None:
        if arrived > self._seconds:
            self._outcome.arrived[index] = 0.0
            return
        self._admission.arrives(TurnEvent(index, arrived))
        self._go()

    def _go(self) -> None:
        """Send on whoever may go."""
        if self.now > self._seconds:
            return
        admission = self._admission
        for index, row in admission.goes(self.now):
            if row is not None:
                self._pinned[index] = row
            super()._dispatch(index, float(self._outcome.arrived[index]))
        wakes = admission.wakes()
        if wakes < self._wakes and wakes <= self._seconds:
            self._wakes = wakes
            heappush(self._arrivals, (max(wakes, self.now), _WAKE))

    def _send(self, now: float, row: int, job: Job) -> None:
        self._admission.sent(TurnEvent(job.index, now, row))
        super()._send(now, row, job)

    def _finish(self, job: Job, row: int, now: float) -> None:
        super()._finish(job, row, now)
        if job.leg is not Leg.PREFILL:
            cached = job.cached_blocks * self._workload.block_tokens
            self._admission.ended(TurnEvent(job.index, now, row, cached))
            self._go()
