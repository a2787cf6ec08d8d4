"""A request that nobody here makes a prompt of, from its first byte to its last: by load."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from inferway.errors import SaturatedError
from inferway.gate.shape import Shape
from inferway.model import Candidates, Decision, Endpoint, Headers, Reason, Target
from inferway.openai_api.llm_request import Objectives
from inferway.openai_api.model_name import ModelNames
from inferway.openai_api.unread import UnreadBody
from inferway.openai_api.usage import UsageReader
from inferway.scheduling.plugin import Ending
from inferway.steps.counts import DirectorStats
from inferway.steps.entry import Entry
from inferway.steps.record import Record
from inferway.steps.rewrite import Rewrites, looked_up


class Endpoints(Protocol):
    """What is asked of the fleet (fleet.Fleet)."""

    def model(self, name: str) -> object:
        """Raises UnknownModelError, or NoEndpointError."""

    def sole_model(self) -> str:
        """The one that all live endpoints serve. Raises InvalidRequestError, NoEndpointError."""

    def book(self, endpoint: Endpoint, new_tokens: int) -> None: ...
    def release(self, endpoint: Endpoint) -> None: ...
    def suspect(self, endpoint: Endpoint) -> None: ...


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
class UnreadJourney:
    """What `director.Journey` is for requests whose prompt is known."""

    headers: Headers
    objectives: Objectives
    body: bytes  # what the attempt sends: the client's bytes, and what we changed of them
    read: Read
    endpoints: Endpoints
    candidates_of: CandidatesOf
    rewrites: Rewrites
    stats: DirectorStats
    random: Random
    clock: Callable[[], float]  # counts seconds
    shape_of: ShapeOf | None = None
    closed: bool = False
    routed: None = None  # nobody watches what is not known
    shape: Shape | None = None
    record: Record = field(init=False)
    _edits: list[bytes] = field(default_factory=list)
    _names: ModelNames | None = None
    _usage: UsageReader = field(default_factory=UsageReader)
    _endpoint: Endpoint | None = None

    def __post_init__(self) -> None:
        self.record = Record(self.clock())

    def finish_reasons(self) -> Sequence[str]:
        """Why the engine has ended its answers, as far as it has said so."""
        return self._usage.finish_reasons()

    @property
    def changes_length(self) -> bool:
        """Whether the answer's bytes are not as many as the engine's."""
        return self._names is not None

    async def decide(self, entry: Entry | None = None) -> Decision:
        """Where to send it, after it has had its turn at `entry`. Raises RequestError,
        NoEndpointError, or what `entry` raises."""
        read = await self.read()
        self.body = read.raw
        self._edits += read.edits
        model = self._model(read)
        if self.shape_of is not None:
            self.shape = await self.shape_of(read, self.candidates_of(model))
        if entry is not None:
            self.candidates_of(model)  # before it waits for nothing
            await entry.enter(model, self.headers, self.objectives.priority)
        targets = by_load(self.candidates_of(model), self.random)
        if entry is not None:
            targets = tuple([each for each in targets if entry.takes(each.endpoint.engine)])
            if not targets:  # where it had a place is gone
                raise SaturatedError("all engines are full; try again")
        if self.shape is not None:
            targets = targets[: self.shape.may_try]
        self.stats.decided(Reason.UNREAD)
        self.record.reason = Reason.UNREAD
        return Decision(targets, Reason.UNREAD)

    def _model(self, read: UnreadBody) -> str:
        asked = read.model
        if asked is None:
            sole = self.endpoints.sole_model()
            self.record.target_model = self.record.known_model = sole
            return sole
        self.record.model = asked
        self.record.target_model = target = self.rewrites.target(asked)
        if target != asked:
            self.body = read.with_model(target)
            self._edits.append(b"model")
            self._names = ModelNames(asked)
        looked_up(self.endpoints.model, asked, target)
        self.record.known_model = self.rewrites.known(asked, target)
        return target

    def attempt(self, target: Target) -> Headers:
        """Books a slot on `target`. Returns headers the engine needs."""
        self.record.target = target
        self.record.attempts += 1
        if self._endpoint is not None:
            self.endpoints.suspect(self._endpoint)
            self.endpoints.release(self._endpoint)
        self._endpoint = endpoint = target.endpoint
        self.endpoints.book(endpoint, 0)
        if self.shape is not None:
            self.shape.on_attempt(target, self.clock())
        return endpoint.headers

    def on_head(self, status: int) -> Headers:
        """The engine has answered; returns what the client's head gets on top."""
        assert self._endpoint is not None
        if status >= 500:
            self.endpoints.suspect(self._endpoint)
        told: Headers = ((b"x-inferway-engine", self._endpoint.engine.encode()),)
        if self._edits:
            told = (*told, (b"x-inferway-edited", b", ".join(self._edits)))
        if self.shape is not None:
            told = (*told, *self.shape.on_head(status))
        return told

    def on_chunk(self, chunk: bytes) -> bytes:
        if not self.record.begun_at:
            self.record.begun_at = self.clock()
        self._usage.feed(chunk)
        return chunk if self._names is None else self._names.feed(chunk)

    def on_end(self) -> bytes:
        return b"" if self._names is None else self._names.end()

    def close(self, outcome: str) -> None:
        """Only the first call counts."""
        if self.closed:
            return
        self.closed = True
        if self._endpoint is not None:
            self.endpoints.release(self._endpoint)
        self.record.outcome = outcome
        self.record.usage = self._usage.usage()
        if self._endpoint is not None and outcome == "upstream_error":
            self.endpoints.suspect(self._endpoint)
        if self.shape is not None:
            self.shape.on_end(Ending(outcome, self.clock()))
