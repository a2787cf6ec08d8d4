"""Send prompts without holders where such a one went the longest time ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

from inferway.model import Candidates, Column, Endpoint, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway.scheduling.plugin import RequestListener
from inferway.scheduling.prefix_source import APPROXIMATE, PrefixSource, prefix_source
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway.scheduling.sessions import rows_by_name


class NoHitLruParameters(Parameters, frozen=True):
    lru_size: Annotated[int, Meta(ge=1)] = 1024  # endpoints that are remembered
    prefix_match_info_producer_name: str = ""  # "": the approximate one
    prefix_plugin_type: str = ""  # not in force, nor in llm-d
    prefix_plugin_name: str = ""  # not in force, nor in llm-d


@dataclass(slots=True)
class NoHitLru:
    """A prompt of which some endpoint holds a block: 0.5 for all. One that nobody holds, a cold
    one: 1 - rank / (n - 1), in the order in which the endpoints last got a cold one; those that
    never did come first, in the table's order (llm-d-router ebab687, scorer/nohitlru)."""

    source: PrefixSource
    lru_size: int = 1024
    _order: OrderedDict[str, None] = field(default_factory=OrderedDict)  # the last one last
    _ranks: PerEndpoint[_Ranks] = field(init=False)

    def __post_init__(self) -> None:
        self._ranks = PerEndpoint(lambda endpoints: _Ranks(endpoints, self._order))

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        size = len(candidates.endpoints)
        if not self._is_cold(candidates):
            return np.full(size, 0.5)
        if size == 1:
            return np.ones(1)
        scores = self._ranks(candidates.endpoints).ranks * (-1.0 / (size - 1))
        scores += 1.0
        return np.maximum(scores, 0.0, out=scores)

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener | None:
        return _ColdRequestListener(self, choice) if self._is_cold(candidates) else None

    def used(self, target: Target) -> None:
        """Note that a cold prompt goes there."""
        name = target.endpoint.name
        self._order[name] = None
        self._order.move_to_end(name)
        if len(self._order) > self.lru_size:
            self._order.popitem(last=False)
            self._ranks.forget()  # it is one of those that never had one, wherever these stand
        for ranks in self._ranks.known():
            ranks.used(name)

    def _is_cold(self, candidates: Candidates) -> bool:
        return not self.source.value(candidates).any()


class _Ranks:
    """Of a list of endpoints, in the order of their turns: kept as it is, for to sort a thousand
    takes as long as all else of a decision."""

    __slots__ = ("_rows", "ranks")

    def __init__(self, endpoints: Sequence[Endpoint], order: Mapping[str, object]) -> None:
        turns = {name: turn for turn, name in enumerate(order, 1)}
        self._rows = rows_by_name(endpoints)
        self.ranks: Column = np.zeros(len(endpoints))
        by_turn = np.argsort([turns.get(each.name, 0) for each in endpoints], kind="stable")
        self.ranks[by_turn] = np.arange(len(endpoints))

    def used(self, name: str) -> None:
        """Put the endpoint of that name at the end."""
        row = self._rows.get(name)
        if row is not None:
            self.ranks -= self.ranks > self.ranks[row]
            self.ranks[row] = len(self.ranks) - 1


@dataclass(slots=True)
class _ColdRequestListener(RequestListener):
    scorer: NoHitLru
    choice: SchedulingResult

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
    "scores 1 - rank / (n - 1) if no endpoint holds the prompt, the least recently used endpoint "
    "first; else 0.5",
    _build,
    NoHitLruParameters,
    needs=_needs,
    not_in_force=frozenset({"prefixPluginType", "prefixPluginName"}),
)
