"""Prefer the endpoint that holds the prompt's beginning, by llm-d's formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from inferway.errors import ConfigError
from inferway.model import Candidates, Column, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.plugin import RequestListener
from inferway.scheduling.prefix_source import APPROXIMATE, PrefixSource, prefix_source
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway_llmd.scheduling.producers.approx_prefix_cache import (
    ApproxPrefixCache,
    ApproxPrefixCacheParameters,
    approx_prefix_cache,
)


class PrefixCacheParameters(Parameters, frozen=True):
    prefix_match_info_producer_name: str = ""  # "": the approximate one
    match_length_weight: Annotated[float, Meta(ge=0, le=1)] = 0.0
    match_length_scale_tokens: Annotated[int, Meta(ge=1)] = 8192
    # Older: of the approximate producer, when it was a part of the scorer. With one of them the
    # scorer has a producer of its own.
    auto_tune: bool | None = None
    block_size_tokens: Annotated[int, Meta(ge=1)] | None = None
    block_size: Annotated[int, Meta(ge=0)] | None = None
    max_prefix_blocks_to_match: Annotated[int, Meta(ge=0)] | None = None
    max_prefix_tokens_to_match: Annotated[int, Meta(ge=0)] | None = None
    lru_capacity_per_server: Annotated[int, Meta(ge=1)] | None = None

    @property
    def of_its_producer(self) -> dict[str, Any]:
        """The older parameters that are given."""
        given = ((name, getattr(self, name)) for name in _OLDER)
        return {name: value for name, value in given if value is not None}


_OLDER = (
    "auto_tune",
    "block_size_tokens",
    "block_size",
    "max_prefix_blocks_to_match",
    "max_prefix_tokens_to_match",
    "lru_capacity_per_server",
)


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


@dataclass(frozen=True, slots=True)
class SelfSupplied:
    """The scorer, and a producer of its own."""

    scorer: PrefixCache
    producer: ApproxPrefixCache

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        return self.scorer.score(request, candidates)

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        self.producer.produce(request, candidates)

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener:
        return self.producer.follow(request, candidates, choice)


def _build(parameters: PrefixCacheParameters, building: Building) -> PrefixCache | SelfSupplied:
    older, name = parameters.of_its_producer, parameters.prefix_match_info_producer_name
    if older and name:
        raise ConfigError(
            f"prefixMatchInfoProducerName: {name!r} stands beside parameters of a producer of its "
            "own; give them to that plugin"
        )
    producer = (
        approx_prefix_cache(ApproxPrefixCacheParameters(**older), building.name) if older else None
    )
    scorer = PrefixCache(
        producer.source if producer else prefix_source(name, APPROXIMATE, building),
        parameters.match_length_weight,
        parameters.match_length_scale_tokens,
    )
    return SelfSupplied(scorer, producer) if producer else scorer


def _needs(parameters: PrefixCacheParameters) -> Sequence[str]:
    if parameters.of_its_producer:
        return ()
    return (parameters.prefix_match_info_producer_name or APPROXIMATE,)


TYPE = PluginType(
    "prefix-cache-scorer",
    "scores w * min(1, matched tokens / L)^2 + (1 - w) * matched / total blocks, with w = "
    "matchLengthWeight and L = matchLengthScaleTokens",
    _build,
    PrefixCacheParameters,
    needs=_needs,
)
