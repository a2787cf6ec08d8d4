"""What Envoy asks -> where it goes. The Director decides what it can read; the rest goes by load:
requests without a body, and bodies that carry no prompt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from inferway.director import Director, Journey, Routed, Within
from inferway.errors import RequestError
from inferway.frontends.ext_proc.counts import ModelCounts, PickerCounts
from inferway.frontends.ext_proc.exchange import Ask, Pick, is_allowed
from inferway.frontends.observers import Observer, Watched, observe
from inferway.model import Candidates, Headers, Target
from inferway.openai_api.paths import parser_by_suffix
from inferway.openai_api.transfer import untrusting
from inferway.steps.unread import by_load


class Endpoints(Protocol):
    """What is there (fleet.Fleet)."""

    def everyone(self) -> Candidates:
        """The live endpoints, whatever they serve. Raises NoEndpointError if there is none."""


@dataclass(slots=True)
class Picker:
    """Finds out what an exchange asks."""

    director: Director
    endpoints: Endpoints
    observers: Sequence[Observer] = ()
    decided_in: Callable[[float], None] = lambda _: None  # seconds
    random: Random = field(default_factory=Random)
    counts: PickerCounts = field(default_factory=PickerCounts)
    trusts_transfers: bool = False  # clients may say where engines fetch blocks from

    async def pick(self, ask: Ask) -> Pick:
        """Raises InferwayError, with the journey closed. Who is cancelled leaves nothing behind."""
        parse = parser_by_suffix(ask.head.path) if ask.is_read and ask.body is not None else None
        within = None if ask.subset is None else partial(is_allowed, subset=ask.subset)
        if parse is None:
            return self._unread(ask, within)
        assert ask.body is not None
        if not self.trusts_transfers:
            parse = untrusting(parse)
        started = time.perf_counter()
        journey = self.director.open(ask.head, ask.body, ask.request_id, parse=parse, within=within)
        try:
            decision = await journey.decide()
            seconds = time.perf_counter() - started
            self.decided_in(seconds)
            ended = observe(self.observers, ask.request_id, journey.routed, seconds)
        except BaseException as e:
            journey.close(_outcome(e))
            raise
        watched = Watched(journey, ended) if ended else journey
        assert journey.routed is not None
        model = self._counted(journey.routed)
        return Pick(
            watched,
            decision.targets,
            usage=lambda: journey.usage,
            ended=partial(_ended, model, journey, started),
        )

    def _counted(self, routed: Routed) -> ModelCounts:
        """A client may name any model where a rule rewrites all: that name is no label."""
        request = routed.request
        asked, target = request.body.model, request.target_model
        if asked != target and not self.director.rewrites.names(asked):
            asked = ""
        counts = self.counts.of_model(asked, target)
        counts.requests += 1
        counts.running += 1
        counts.request_bytes.observe(len(request.raw))
        return counts

    def _unread(self, ask: Ask, within: Within | None) -> Pick:
        """By load as it was last heard of; of equals, any."""
        self.counts.unread += 1
        candidates = self.endpoints.everyone()
        if within is not None:
            candidates = self.director.allowed(candidates, within)
        targets = by_load(candidates, self.random)
        return Pick(Passing(ask.body or b""), targets)


def _outcome(error: BaseException) -> str:
    """How a journey ends that comes to no decision. The stream of who has gone is cancelled."""
    if isinstance(error, asyncio.CancelledError):
        return "client_gone"
    return "refused" if isinstance(error, RequestError) else "error"


def _ended(
    model: ModelCounts, journey: Journey, started: float, outcome: str, answer_bytes: int
) -> None:
    model.ended(outcome, time.perf_counter() - started, answer_bytes, journey.usage)


class Passing:
    """The journey of a request that nobody here reads."""

    changes_length = False

    def __init__(self, body: bytes) -> None:
        self.body = body

    def attempt(self, target: Target) -> Headers:
        return target.endpoint.headers

    def on_head(self, status: int) -> Headers:
        del status
        return ()

    def on_chunk(self, chunk: bytes) -> bytes:
        return chunk

    def on_end(self) -> bytes:
        return b""

    def close(self, outcome: str) -> None:
        """Nothing was booked."""
        del outcome
