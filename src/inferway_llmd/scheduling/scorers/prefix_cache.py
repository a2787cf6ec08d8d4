"""Prefer the endpoint that holds the prompt's beginning, by llm-d's formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.prefix_source import APPROXIMATE, PrefixSource, prefix_source
from inferway.scheduling.registry import Building, Parameters, PluginType


class PrefixCacheParameters(Parameters, frozen=True):
    prefix_match_info_producer_name: str = ""  # "": the approximate one
    match_length_weight: Annotated[float, Meta(ge=0, le=1)] = 0.0
    match_length_scale_tokens: Annotated[int, Meta(ge=1)] = 8192


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """w * min(1, matched tokens / scale)^2 + (1 - w) * matched blocks / the prompt's blocks; 0 for
    a prompt without blocks (llm-d-router ebab687, scorer/prefix/plugin.go)."""

    source: PrefixSource
    match_length_weight: float = 0.0
    match_length_scale_tokens: int = 8192

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        total = np.maximum(self.source.total(candidates), 1.0)
        ratio = self.source.value(candidates) / total
        if self.match_length_weight == 0:
            return np.minimum(ratio, 1.0, out=ratio)
        return self._with_length(ratio, candidates)

    def _with_length(self, ratio: Column, candidates: Candidates) -> Column:
        match, weight = self.source.match(candidates), self.match_length_weight
        if match is None:
            return ratio
        length = match.value * match.block_tokens
        length /= self.match_length_scale_tokens
        np.minimum(length, 1.0, out=length)
        length *= length
        length *= weight
        length += (1.0 - weight) * np.minimum(ratio, 1.0)
        return length


def _build(parameters: PrefixCacheParameters, building: Building) -> PrefixCache:
    name = parameters.prefix_match_info_producer_name
    return PrefixCache(
        prefix_source(name, APPROXIMATE, building),
        parameters.match_length_weight,
        parameters.match_length_scale_tokens,
    )


def _needs(parameters: PrefixCacheParameters) -> Sequence[str]:
    return (parameters.prefix_match_info_producer_name or APPROXIMATE,)


TYPE = PluginType(
    "prefix-cache-scorer",
    "scores w * min(1, matched tokens / L)^2 + (1 - w) * matched / total blocks, with w = "
    "matchLengthWeight and L = matchLengthScaleTokens",
    _build,
    PrefixCacheParameters,
    needs=_needs,
)
