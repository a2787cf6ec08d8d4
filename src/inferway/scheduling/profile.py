"""filters -> weighted scorers -> picker: candidates in, ranked targets out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from inferway.errors import NoEndpointError
from inferway.model import Candidates, Choice, Column, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.narrowing import Narrowing
from inferway.scheduling.pickers.max_score import MaxScore
from inferway.scheduling.plugin import Filter, Picker, Scorer
from inferway.scheduling.scorers.prefix_match import PrefixMatch
from inferway.scheduling.scorers.recent_work import RecentWork
from inferway.scheduling.scorers.relative_load import RelativeLoad


@dataclass(frozen=True, slots=True)
class Weighted:
    """A scorer and how much it has to say."""

    scorer: Scorer
    weight: float


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to choose. `num_targets` is how many endpoints a request may be tried on."""

    picker: Picker
    scorers: Sequence[Weighted]
    filters: Sequence[Filter] = ()
    num_targets: int = 3
    _narrowing: Narrowing = field(default_factory=Narrowing, repr=False, compare=False)

    def choose(self, request: LLMRequest, candidates: Candidates) -> Choice:
        """The targets, best first. Raises NoEndpointError naming who removed the last one."""
        if self.filters:
            candidates = self._filtered(request, candidates)
        scores = self._scores(request, candidates)
        endpoints = candidates.endpoints
        matched, blocks = candidates.matched_blocks, candidates.prompt_blocks
        targets = [
            Target(endpoints[row], scores.item(row), int(matched.item(row)), int(blocks.item(row)))
            for row in self.picker.pick(scores, self.num_targets)
        ]
        return Choice(tuple(targets))

    def _scores(self, request: LLMRequest, candidates: Candidates) -> Column:
        scores: Column | None = None
        for weighted in self.scorers:
            rating = weighted.scorer.score(request, candidates)
            if weighted.weight != 1.0:
                rating *= weighted.weight
            if scores is None:
                scores = rating
            else:
                scores += rating
        return np.zeros(len(candidates.endpoints)) if scores is None else scores

    def _filtered(self, request: LLMRequest, candidates: Candidates) -> Candidates:
        for item in self.filters:
            before = len(candidates.endpoints)
            candidates = self._narrowing.kept(candidates, item.keep(request, candidates))
            if not candidates.endpoints:
                name = getattr(item, "name", "") or type(item).__name__
                raise NoEndpointError(f"no endpoint left: {name} removed the last {before}")
        return candidates


def kv_aware() -> Profile:
    """By weights instead of milliseconds (docs/scheduling.md): a full match is worth leaving the
    mean load once over.

    With weight 2 the load's rating spans [-1, 1] around its middle, the prefix's [0, 1]: an
    engine that holds the whole prompt is left for one that holds nothing when it carries three
    times the other's load (of two engines), never for a single request more. Recent work has
    less to say than half a prompt: it spreads sessions that share only their first words.
    """
    scorers = (
        Weighted(PrefixMatch(), 1.0),
        Weighted(RelativeLoad(), 2.0),
        Weighted(RecentWork(), 0.4),
    )
    return Profile(MaxScore(), scorers)
