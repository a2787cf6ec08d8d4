"""The number of tokens that are on their way to each endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

from inferway.errors import ConfigError
from inferway.model import Candidates, Column, ColumnKey, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.per_endpoint import EndpointSlots
from inferway.scheduling.plugin import RequestListener, RequestOutcome
from inferway.scheduling.prefix_source import PRECISE, PrefixSource, prefix_source
from inferway.scheduling.registry import Building, Parameters, PluginType

INFLIGHT_LOAD = "inflight-load-producer"


def token_column(producer: str) -> ColumnKey[Column]:
    """Return the column with the tokens in flight on the endpoint, and those that this request
    would add. One column: nobody asks for one without the other."""
    return ColumnKey(f"{producer}/tokens")


def token_column_of(producer: str, building: Building) -> ColumnKey[Column]:
    """Return the column of the producer that `inFlightLoadProducerName` names; "": of the only one.
    Raises ConfigError."""
    name = producer or building.sole_plugin_of(INFLIGHT_LOAD)
    if building.type_of(name) != INFLIGHT_LOAD:
        raise ConfigError(
            f"inFlightLoadProducerName: {name!r} is no plugin that counts tokens in flight; "
            f"expected one of type {INFLIGHT_LOAD}"
        )
    return token_column(name)


class InflightLoadParameters(Parameters, frozen=True):
    add_estimated_output_tokens: bool = False
    output_ratio: Annotated[float, Meta(ge=0)] = 1.5
    max_estimated_output_tokens: Annotated[int, Meta(ge=0)] | None = None
    prefix_match_info_producer_name: str = ""  # "": the precise one
    sync_cross_replica_state: bool = True  # not in force: these tokens are its own


@dataclass(slots=True)
class InflightLoad:
    """Counts the tokens that a request makes an endpoint compute:

    prompt    blocks of it that the endpoint does not hold, in tokens, and its tail beyond all
              blocks; from the attempt until the first piece of the answer
    output    with `output`: round(tokens * `output_ratio`), no more than the request or
              `most_output` allows; then both count until the end

    Endpoints of the choice's other profiles count as well, until the first piece: they have handed
    the request on by then (llm-d-router ebab687, dataproducer/inflightload).
    """

    column: ColumnKey[Column]
    prefix: PrefixSource
    output: bool = False
    output_ratio: float = 1.5
    most_output: int | None = None
    in_flight: Column = field(default_factory=lambda: np.zeros(0))  # by slot
    slots: EndpointSlots = field(init=False)
    _last: tuple[LLMRequest, Column] | None = None  # what was produced for it

    def __post_init__(self) -> None:
        self.slots = EndpointSlots(self._grow, self._forget)

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        own = self._own(request, candidates)
        self._last = (request, own)
        candidates.add(self.column, self.tokens(candidates) + own)

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener:
        last = self._last
        if last is None or last[0] is not request:
            self.produce(request, candidates)
            return self.follow(request, candidates, choice)
        return _InflightListener(self, candidates, choice, last[1])

    def tokens(self, candidates: Candidates) -> Column:
        """Return the tokens in flight on each endpoint, as of now."""
        rows = self.slots.rows(candidates.endpoints, candidates.now)  # it may grow
        return self.in_flight[rows]

    def _own(self, request: LLMRequest, candidates: Candidates) -> Column:
        tokens = request.num_prompt_tokens
        match = self.prefix.match(candidates)
        if match is None:
            own = np.full(len(candidates.endpoints), float(tokens))
        else:
            own = tokens - match.total * match.block_tokens
            np.maximum(own, 0.0, out=own)
            own += np.maximum(match.total - match.value, 0.0) * match.block_tokens
        if self.output:
            own += self._output(request, tokens)
        return own

    def _output(self, request: LLMRequest, tokens: int) -> int:
        expected = int(tokens * self.output_ratio + 0.5)  # as Go rounds
        limits = [most_output_tokens(request), self.most_output]
        return min([expected, *(limit for limit in limits if limit is not None)])

    def _grow(self, slots: int) -> None:
        self.in_flight = np.concatenate([self.in_flight, np.zeros(slots - len(self.in_flight))])

    def _forget(self, slot: int) -> None:
        self.in_flight[slot] = 0.0


def most_output_tokens(request: LLMRequest) -> int | None:
    """Return how many tokens the request allows; None if it does not say."""
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        most: int | None = getattr(request.body, name, None)
        if most is not None:
            return most
    return None


@dataclass(slots=True)
class _InflightListener(RequestListener):
    load: InflightLoad
    candidates: Candidates
    choice: SchedulingResult
    own: Column
    _here: list[tuple[int, float]] = field(default_factory=list)  # (slot, tokens)
    _others: list[tuple[int, float]] = field(default_factory=list)

    def on_attempt(self, target: Target, now: float) -> Headers:
        self._end()
        self._here = [self._book(target)]
        self._others = [self._book(other) for other in self.choice.others.values()]
        return ()

    def on_first_chunk(self, now: float) -> None:
        self._release(self._others)
        if not self.load.output:
            self._release(self._here)

    def on_end(self, ending: RequestOutcome) -> None:
        self._end()

    def _end(self) -> None:
        self._release(self._here)
        self._release(self._others)

    def _book(self, target: Target) -> tuple[int, float]:
        endpoint = target.endpoint
        slot = self.load.slots.slot(endpoint)
        tokens = self.own.item(self.candidates.rows[endpoint.holder])
        self.load.in_flight[slot] += tokens
        return slot, tokens

    def _release(self, booked: list[tuple[int, float]]) -> None:
        for slot, tokens in booked:
            self.load.in_flight[slot] -= tokens
        booked.clear()


def _build(parameters: InflightLoadParameters, building: Building) -> InflightLoad:
    name = parameters.prefix_match_info_producer_name
    return InflightLoad(
        token_column(building.name or INFLIGHT_LOAD),
        prefix_source(name, PRECISE, building),
        parameters.add_estimated_output_tokens,
        parameters.output_ratio,
        parameters.max_estimated_output_tokens,
    )


def _needs(parameters: InflightLoadParameters) -> Sequence[str]:
    name = parameters.prefix_match_info_producer_name
    return (name,) if name else ()


TYPE = PluginType(
    INFLIGHT_LOAD,
    "counts the tokens in flight on each endpoint, and those that the request would add",
    _build,
    InflightLoadParameters,
    needs=_needs,
    not_in_force=frozenset({"syncCrossReplicaState"}),
)
