"""Saturation of engines by the requests that we have sent them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.errors import ConfigError
from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.admitters import saturated
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway_llmd.scheduling.producers.inflight_load import INFLIGHT_LOAD, InflightLoad

Most = Annotated[int, Meta(ge=1)]


class ConcurrencyParameters(Parameters, frozen=True):
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    max_concurrency: Most = 100
    max_token_concurrency: Most = 1_000_000
    headroom: Annotated[float, Meta(ge=0)] = 0.0
    in_flight_load_producer_name: str = ""


@dataclass(frozen=True, slots=True)
class ConcurrencyDetector:
    """Counts the requests that are on each endpoint against `most_requests`, the tokens of prompts
    against `most_tokens`, or takes the larger share of the two; None: that does not count.

    In a profile it is a filter: it keeps the endpoints with less than that and `headroom` of it
    more (llm-d-router ebab687, saturationdetector/concurrency).
    """

    most_requests: int | None
    most_tokens: int | None = None
    headroom: float = 0.0
    load: InflightLoad | None = None  # counts tokens

    @property
    def per_request(self) -> float:
        """The share of an endpoint that one request takes."""
        return 0.0 if self.most_requests is None else 1.0 / self.most_requests

    def loads(self, candidates: Candidates) -> Column:
        shares = np.zeros(len(candidates.endpoints))
        if self.most_requests is not None:
            shares = candidates.in_flight / self.most_requests
        if self.most_tokens is not None and self.load is not None:
            tokens = self.load.tokens(candidates)
            np.maximum(shares, tokens / self.most_tokens, out=shares)
        return shares

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        return saturated(request, self.loads(candidates))

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = self.loads(candidates) < 1.0 + self.headroom
        return kept


def _build(parameters: ConcurrencyParameters, building: Building) -> ConcurrencyDetector:
    mode = parameters.concurrency_mode
    requests, tokens = parameters.max_concurrency, parameters.max_token_concurrency
    load = None
    if mode != "requests":
        name = parameters.in_flight_load_producer_name or building.sole_plugin_of(INFLIGHT_LOAD)
        found = building.plugins.get(name)
        if isinstance(found, InflightLoad):
            load = found
        elif parameters.in_flight_load_producer_name:
            raise ConfigError(
                f"inFlightLoadProducerName: {name!r} is no plugin that counts tokens in flight; "
                f"expected one of type {INFLIGHT_LOAD}"
            )
    return ConcurrencyDetector(
        None if mode == "tokens" else requests,
        None if mode == "requests" else tokens,
        parameters.headroom,
        load,
    )


def _needs(parameters: ConcurrencyParameters) -> Sequence[str]:
    if parameters.concurrency_mode == "requests":
        return ()
    return (parameters.in_flight_load_producer_name or INFLIGHT_LOAD,)


TYPE = PluginType(
    "concurrency-detector",
    "measures the saturation by the requests or tokens in flight against maxConcurrency or "
    "maxTokenConcurrency for each endpoint; refuses sheddable requests while it is 1 or more",
    _build,
    ConcurrencyParameters,
    needs=_needs,
)
