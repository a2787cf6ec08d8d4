"""A request that nobody here makes a prompt of -> where it goes: by load."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from inferway.errors import SaturatedError
from inferway.gate.shape import Shape
from inferway.model import Candidates, Decision, Headers, Reason, Target
from inferway.openai_api.llm_request import Objectives
from inferway.openai_api.unread import UnreadBody
from inferway.steps.entry import Entry
from inferway.steps.journey import Journey
from inferway.steps.rewrite import Rewrites, looked_up


class Endpoints(Protocol):
    """What is asked of the fleet (fleet.Fleet)."""

    def model(self, name: str) -> object:
        """Raises UnknownModelError, or NoEndpointError."""

    def sole_model(self) -> str:
        """The one that all live endpoints serve. Raises InvalidRequestError, NoEndpointError."""


# Reads a body, which may take a while.
Read = Callable[[], Awaitable[UnreadBody]]

# The endpoints of a model that take requests now. Raises NoEndpointError.
CandidatesOf = Callable[[str], Candidates]

# What shape it asks of its answer, which may go to one of these. Raises SpecError.
ShapeOf = Callable[[UnreadBody, Candidates], Awaitable[Shape | None]]


def by_load(candidates: Candidates, random: Random) -> tuple[Target, ...]:
    """The least loaded first, as it was last heard of; of equals, any."""
    load = candidates.in_flight + candidates.others
    order = sorted(range(len(load)), key=lambda row: (load[row], random.random()))
    return tuple([Target(candidates.endpoints[row], 0.0, 0, 0) for row in order])


@dataclass(slots=True)
class ByLoad:
    """Decides where a request goes whose prompt nobody here makes: to the least loaded engine."""

    headers: Headers
    objectives: Objectives
    read: Read
    endpoints: Endpoints
    candidates_of: CandidatesOf
    rewrites: Rewrites
    random: Random
    shape_of: ShapeOf | None = None

    async def decide(self, journey: Journey, entry: Entry | None) -> Decision:
        """As `Journey.decide`."""
        read = await self.read()
        journey.body = journey.known_body = read.raw
        journey.edits += read.edits
        model = self._model(journey, read)
        shape = None
        if self.shape_of is not None:
            journey.shape = shape = await self.shape_of(read, self.candidates_of(model))
        if entry is not None:
            self.candidates_of(model)  # before it waits for nothing
            await entry.enter(model, self.headers, self.objectives.priority)
        targets = by_load(self.candidates_of(model), self.random)
        if entry is not None:
            targets = tuple([each for each in targets if entry.takes(each.endpoint.engine)])
            if not targets:  # where it had a place is gone
                raise SaturatedError("all engines are full; try again")
        if shape is not None:
            journey.listen(shape)
            targets = targets[: shape.may_try]
        return Decision(targets, Reason.UNREAD)

    def _model(self, journey: Journey, read: UnreadBody) -> str:
        asked, record = read.model, journey.record
        if asked is None:
            sole = self.endpoints.sole_model()
            record.target_model = record.known_model = sole
            return sole
        record.model = asked
        record.target_model = target = self.rewrites.target(asked)
        if target != asked:
            journey.rename(asked, read.with_model(target))
        looked_up(self.endpoints.model, asked, target)
        record.known_model = self.rewrites.known(asked, target)
        return target
