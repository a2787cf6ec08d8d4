"""Without scoring: the endpoint that has the least to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from inferway.model import Candidates, Choice, Target
from inferway.openai_api.llm_request import LLMRequest


@dataclass(slots=True)
class LeastLoaded:
    """Ranks by requests in the engine, ours in flight and those of others; equals take turns.
    In plain lists: that is all it does, and on most fleets they are faster than arrays."""

    num_targets: int = 3
    _turn: count[int] = field(default_factory=count)

    def choose(self, request: LLMRequest, candidates: Candidates) -> Choice:
        """The targets, best first."""
        load: list[float] = (candidates.in_flight + candidates.others).tolist()
        rows = sorted(range(len(load)), key=load.__getitem__)
        equals = load.count(load[rows[0]])
        if equals > 1:
            rows.insert(0, rows.pop(next(self._turn) % equals))
        endpoints = candidates.endpoints
        targets = [Target(endpoints[row], -load[row], 0, 0) for row in rows[: self.num_targets]]
        return Choice(tuple(targets))
