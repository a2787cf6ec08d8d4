"""filters -> weighted scorers -> picker: candidates in, ranked targets out. Or, without scoring,
the endpoint that has the least to do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.errors import NoEndpointError
from inferway.model import Candidates, Column, Endpoint, HolderId, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.adapter_rows import adapter_rows
from inferway.scheduling.plugin import Filter, Picker, Scorer

MOST_REMEMBERED = 64  # lists of endpoints that filters have left


class _Left(NamedTuple):
    before: Sequence[Endpoint]  # that was narrowed; while it is kept, no other has its id
    at: NDArray[np.intp]  # rows of it
    endpoints: Sequence[Endpoint]
    rows: Mapping[HolderId, int]


@dataclass(slots=True)
class RowSelector:
    """Remembers which endpoints were left. Most filters leave the same ones again and again, and
    what plugins remember of a list of endpoints (PerEndpoint) holds for the same list only."""

    _left: OrderedDict[tuple[int, bytes], _Left] = field(default_factory=OrderedDict)

    def kept(self, candidates: Candidates, keep: NDArray[np.bool_]) -> Candidates:
        """Return the candidates that are kept; `candidates` themselves if all are."""
        if np.count_nonzero(keep) == len(keep):
            return candidates
        key = (id(candidates.endpoints), keep.tobytes())
        left = self._left.get(key)
        if left is None:
            left = self._left[key] = _left(candidates.endpoints, keep)
            if len(self._left) > MOST_REMEMBERED:
                self._left.popitem(last=False)
        adapters = adapter_rows(candidates.adapters).narrowed(left.at)
        return candidates.narrowed(left.at, left.endpoints, left.rows, adapters)


def _left(before: Sequence[Endpoint], keep: NDArray[np.bool_]) -> _Left:
    at = keep.nonzero()[0]
    endpoints = [before[row] for row in at.tolist()]
    return _Left(before, at, endpoints, {each.holder: row for row, each in enumerate(endpoints)})


@dataclass(frozen=True, slots=True)
class Weighted:
    """A scorer and how much it has to say."""

    scorer: Scorer
    weight: float


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to choose endpoints. `num_targets` is how many endpoints a request may be tried
    on."""

    picker: Picker
    scorers: Sequence[Weighted]
    filters: Sequence[Filter] = ()
    num_targets: int = 3
    _narrowing: RowSelector = field(default_factory=RowSelector, repr=False, compare=False)

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        """Return the targets, best first. Raises NoEndpointError naming who removed the last
        one."""
        if not self.scorers:
            return self._unscored(request, candidates)
        candidates = self._filtered(request, candidates, self.filters)
        scores = self._scores(request, candidates)
        picked = self.picker.pick(scores, self.num_targets)
        return _result(candidates, [(row, scores.item(row)) for row in picked])

    def _unscored(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        """Choose among equals. What the last filter leaves is not made a table, which would take
        most of the time."""
        if not self.filters:
            rows = list(range(len(candidates.endpoints)))
        else:
            candidates = self._filtered(request, candidates, self.filters[:-1])
            last = self.filters[-1]
            rows = last.keep(request, candidates).nonzero()[0].tolist()
            if not rows:
                raise _nothing_left(last, len(candidates.endpoints))
        picked = self.picker.pick(np.zeros(len(rows)), self.num_targets)
        return _result(candidates, [(rows[each], 0.0) for each in picked])

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
        assert scores is not None
        return scores

    def _filtered(
        self, request: LLMRequest, candidates: Candidates, filters: Sequence[Filter]
    ) -> Candidates:
        for item in filters:
            before = len(candidates.endpoints)
            candidates = self._narrowing.kept(candidates, item.keep(request, candidates))
            if not candidates.endpoints:
                raise _nothing_left(item, before)
        return candidates


def _result(candidates: Candidates, picked: Sequence[tuple[int, float]]) -> SchedulingResult:
    """`picked`: rows, best first, with their scores."""
    endpoints = candidates.endpoints
    matched, blocks = candidates.matched_blocks, candidates.prompt_blocks
    targets = [
        Target(endpoints[row], score, int(matched.item(row)), int(blocks.item(row)))
        for row, score in picked
    ]
    return SchedulingResult(tuple(targets))


def _nothing_left(item: Filter, before: int) -> NoEndpointError:
    name = getattr(item, "name", "") or type(item).__name__
    return NoEndpointError(f"no endpoint left: {name} removed the last {before}")


@dataclass(slots=True)
class LeastLoaded:
    """Ranks by requests in the engine, ours in flight and those of others; equals take turns.
    In plain lists: that is all it does, and on most fleets they are faster than arrays."""

    num_targets: int = 3
    _turn: count[int] = field(default_factory=count)

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        """Return the targets, best first."""
        load: list[float] = (candidates.in_flight + candidates.others).tolist()
        rows = sorted(range(len(load)), key=load.__getitem__)
        equals = load.count(load[rows[0]])
        if equals > 1:
            rows.insert(0, rows.pop(next(self._turn) % equals))
        endpoints = candidates.endpoints
        targets = [Target(endpoints[row], -load[row], 0, 0) for row in rows[: self.num_targets]]
        return SchedulingResult(tuple(targets))
