"""Prefer the endpoint that has the fewest tokens on their way to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from inferway.errors import ConfigError
from inferway.model import Added, Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.producers.inflight_load import INFLIGHT_LOAD, token_column
from inferway.scheduling.registry import Building, Parameters, PluginType


class TokenLoadParameters(Parameters, frozen=True):
    queue_threshold_tokens: Annotated[int, Meta(ge=1)] = 4_194_304  # 128 requests of 32k tokens
    in_flight_load_producer_name: str = ""


@dataclass(frozen=True, slots=True)
class TokenLoad:
    """1 - tokens / T, 0 for T or more: tokens in flight there, and those of this request that it
    would have to compute."""

    tokens: Added[Column]
    queue_threshold_tokens: int = 4_194_304

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        tokens = candidates.get(self.tokens)
        if tokens is None:
            return np.ones(len(candidates.endpoints))
        rating = tokens * (-1.0 / self.queue_threshold_tokens)
        rating += 1.0
        return np.maximum(rating, 0.0, out=rating)


def _build(parameters: TokenLoadParameters, building: Building) -> TokenLoad:
    producer = parameters.in_flight_load_producer_name or building.the(INFLIGHT_LOAD)
    if building.type_of(producer) != INFLIGHT_LOAD:
        raise ConfigError(
            f"inFlightLoadProducerName: {producer!r} is no plugin that counts tokens in flight; "
            f"expected one of type {INFLIGHT_LOAD}"
        )
    return TokenLoad(token_column(producer), parameters.queue_threshold_tokens)


def _needs(parameters: TokenLoadParameters) -> Sequence[str]:
    return (parameters.in_flight_load_producer_name or INFLIGHT_LOAD,)


TYPE = PluginType(
    "token-load-scorer",
    "scores 1 - tokens in flight / queueThresholdTokens, at least 0",
    _build,
    TokenLoadParameters,
    needs=_needs,
)
