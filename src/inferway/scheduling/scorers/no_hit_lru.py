"""Send prompts that nobody holds where such a one went the longest time ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

from inferway.model import Candidates, Choice, Column, Headers, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.of_endpoints import OfEndpoints
from inferway.scheduling.plugin import Follower
from inferway.scheduling.prefix_source import APPROXIMATE, PrefixSource, prefix_source
from inferway.scheduling.registry import Building, Parameters, PluginType


class NoHitLruParameters(Parameters, frozen=True):
    lru_size: Annotated[int, Meta(ge=1)] = 1024  # endpoints that are remembered
    prefix_match_info_producer_name: str = ""  # "": the approximate one
    prefix_plugin_type: str = ""  # without effect, as in llm-d
    prefix_plugin_name: str = ""  # without effect, as in llm-d


@dataclass(slots=True)
class NoHitLru:
    """A prompt of which some endpoint holds a block: 0.5 for all. One that nobody holds, a cold
    one: 1 - rank / (n - 1), in the order in which the endpoints last got a cold one; those that
    never did come first, in the table's order (llm-d-router ebab687, scorer/nohitlru)."""

    source: PrefixSource
    lru_size: int = 1024
    _order: OrderedDict[str, int] = field(default_factory=OrderedDict)  # the last one last
    _turn: int = 0
    _names: OfEndpoints[list[str]] = field(
        default_factory=lambda: OfEndpoints(lambda endpoints: [each.name for each in endpoints])
    )

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        size = len(candidates.endpoints)
        if not self._is_cold(candidates):
            return np.full(size, 0.5)
        if size == 1:
            return np.ones(1)
        turns = [self._order.get(name, 0) for name in self._names(candidates.endpoints)]
        scores = np.empty(size)
        scores[np.argsort(turns, kind="stable")] = 1.0 - np.arange(size) / (size - 1)
        return scores

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: Choice
    ) -> Follower | None:
        return _Cold(self, choice) if self._is_cold(candidates) else None

    def used(self, target: Target) -> None:
        """A cold prompt goes there."""
        self._turn += 1
        name = target.endpoint.name
        self._order[name] = self._turn
        self._order.move_to_end(name)
        if len(self._order) > self.lru_size:
            self._order.popitem(last=False)

    def _is_cold(self, candidates: Candidates) -> bool:
        return not self.source.value(candidates).any()


@dataclass(slots=True)
class _Cold(Follower):
    scorer: NoHitLru
    choice: Choice

    def on_attempt(self, target: Target, now: float) -> Headers:
        for used in (target, *self.choice.others.values()):
            self.scorer.used(used)
        return ()


def _build(parameters: NoHitLruParameters, building: Building) -> NoHitLru:
    name = parameters.prefix_match_info_producer_name
    return NoHitLru(prefix_source(name, APPROXIMATE, building), parameters.lru_size)


def _needs(parameters: NoHitLruParameters) -> Sequence[str]:
    return (parameters.prefix_match_info_producer_name or APPROXIMATE,)


TYPE = PluginType(
    "no-hit-lru-scorer",
    "a prompt that nobody holds: 1 - rank / (n - 1), least recently used first; else 0.5",
    _build,
    NoHitLruParameters,
    needs=_needs,
)
