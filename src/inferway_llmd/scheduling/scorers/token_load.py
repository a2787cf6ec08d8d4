"""Prefer the endpoint with fewer tokens in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from inferway.model import Candidates, Column, ColumnKey
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway_llmd.scheduling.producers.inflight_load import INFLIGHT_LOAD, token_column_of


class TokenLoadParameters(Parameters, frozen=True):
    queue_threshold_tokens: Annotated[int, Meta(ge=1)] = 4_194_304  # 128 requests of 32k tokens
    in_flight_load_producer_name: str = ""


@dataclass(frozen=True, slots=True)
class TokenLoad:
    """Rates 1 - tokens / T, 0 for T or more: tokens in flight there, and those of this request that
    it would have to compute."""

    tokens: ColumnKey[Column]
    queue_threshold_tokens: int = 4_194_304

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        tokens = candidates.get(self.tokens)
        if tokens is None:
            return np.ones(len(candidates.endpoints))
        rating = tokens * (-1.0 / self.queue_threshold_tokens)
        rating += 1.0
        return np.maximum(rating, 0.0, out=rating)


def _token_load(parameters: TokenLoadParameters, building: Building) -> TokenLoad:
    column = token_column_of(parameters.in_flight_load_producer_name, building)
    return TokenLoad(column, parameters.queue_threshold_tokens)


def _needs_tokens(parameters: TokenLoadParameters) -> Sequence[str]:
    return (parameters.in_flight_load_producer_name or INFLIGHT_LOAD,)


TYPE = PluginType(
    "token-load-scorer",
    "scores 1 - tokens in flight / queueThresholdTokens, at least 0",
    _token_load,
    TokenLoadParameters,
    needs=_needs_tokens,
)
