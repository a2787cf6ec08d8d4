"""The plugin points: what a plugin may be, and what it is given.

The law for filters, scorers, pickers and profile handlers: they read the request and the candidates
and nothing else. A new fact is a new column that a producer adds, never a lookup from in here; that
keeps them pure, and a test of one is a table. What a plugin learns from the requests that pass, it
learns as a `RequestListenerFactory`.

here            in llm-d (field notes 3.3)
Filter          Filter
Scorer          Scorer
Picker          Picker
Chooser         ProfileHandler, with the profiles it chooses among
Producer        DataProducer
Admitter        Admitter
Decider         decider plugins of disaggregation
Following       PreRequest, ResponseHeader, ResponseBody
Measured        metrics.Register of the plugin's own collectors

One plugin may be several of them: what it has the methods of, it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.metrics import Family
from inferway.model import Candidates, Column, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.usage import Usage


class ProfileHandler(Protocol):
    """Candidates in, ranked targets out: a profile, or a handler of several."""

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        """Return the targets, best first; raises NoEndpointError."""


@runtime_checkable
class Filter(Protocol):
    """Narrows the candidates."""

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        """Return True for each row that may serve the request."""


@runtime_checkable
class Scorer(Protocol):
    """Rates the candidates."""

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        """Return a rating in [0, 1] for each row; 1 is best. A new array: the caller may change
        it."""


@runtime_checkable
class Picker(Protocol):
    """Orders the rated candidates."""

    def pick(self, scores: Column, count: int) -> list[int]:
        """Return at most `count` row numbers, the first choice first."""


@runtime_checkable
class TakesTurns(Protocol):
    """A Picker that gives equals their turns. A request that is sent nowhere takes none."""

    turn: int


@runtime_checkable
class DataProducer(Protocol):
    """Brings facts that others judge by."""

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        """Add the producer's columns (`Candidates.add`)."""


@runtime_checkable
class Admitter(Protocol):
    """Refuses requests before they go to an engine."""

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        """Return why the request must not go in now, as the client is told; None if it may."""


@dataclass(slots=True)
class WaitingCounts:
    """The number of requests that wait for an engine, and of those that have waited."""

    waiting: int = 0
    went: int = 0
    late: int = 0  # of those that went: it was too late to be in time
    too_long: int = 0
    full: int = 0


@runtime_checkable
class AdmitsInTime(Protocol):
    """Has requests wait at the gateway until an engine can begin their prompts soon."""

    counts: WaitingCounts  # kept by the queue of those that wait

    def is_open(self, candidates: Candidates) -> NDArray[np.bool_]:
        """Return True for each endpoint that can begin another prompt soon."""

    def spare_seconds(self, request: LLMRequest, candidates: Candidates) -> float:
        """Return how long the request can wait and be in time; less than 0: it is late already."""


@runtime_checkable
class ReadsColumns(Protocol):
    """An Admitter that reads what producers add: it is asked after them, and after the request has
    had its turn. All others are asked before."""

    reads_columns: bool


@runtime_checkable
class Decider(Protocol):
    """Decides whether a request is worth another stage, on an engine apart."""

    def is_worth_it(
        self, request: LLMRequest, candidates: Candidates, target: Target | None
    ) -> bool:
        """Return whether the stage is worth it. `target`: where the request is going to be decoded,
        if that is known yet; one of `candidates`."""


class RequestOutcome(msgspec.Struct, frozen=True):
    """The outcome of a request that has ended."""

    outcome: str  # "ok", "client_gone", "upstream_error", "refused", "error"
    now: float  # seconds
    usage: Usage | None = None
    streamed: bool = True  # false: the answer came in one piece, at its end


class RequestListener:
    """Told what becomes of one request, by the methods it overrides. Must not fail and not wait:
    it is called in the data path."""

    def on_prefill(self, target: Target, now: float) -> Headers | None:
        """Note that the prefill leg of the request is sent to `target`, perhaps after others; its
        `on_attempt` will be the decode leg's. Returns headers that the engine gets, if any."""
        return None

    def on_prefilled(self, now: float, usage: Usage | None, *, moved: bool) -> None:
        """Note that the prefill leg has ended. `usage`: what its engine says, if it does; `moved`:
        the decode leg gets the blocks, else it computes the prompt, or the prefill leg is sent
        once more."""

    def on_attempt(self, target: Target, now: float) -> Headers:
        """Note that the request is sent to `target`, perhaps after others. Returns headers that the
        engine gets."""
        return ()

    def on_head(self, status: int) -> Headers:
        """Note that the engine has answered. Returns headers that the client gets. Those that say
        how it was decided begin with x-inferway-: once there is an admin key, they are its bearers'
        only."""
        return ()

    def on_first_chunk(self, now: float) -> None:
        """Note that the first piece of the answer's body has come: the request is sent nowhere
        else."""

    def on_end(self, ending: RequestOutcome) -> None:
        """Note that the request is over; called exactly once, whatever happened."""


@runtime_checkable
class RequestListenerFactory(Protocol):
    """Learns from requests on their way."""

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener | None:
        """Return a listener of the request; None: it does not matter."""


@runtime_checkable
class Measured(Protocol):
    """Has numbers for /metrics."""

    def families(self) -> Iterable[Family]:
        """Return its metric families, with the numbers of now; called for each scrape."""
