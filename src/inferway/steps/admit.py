"""Refuse what may be refused while the engines are full (field notes 3.2, 3.7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest

SATURATED = "system saturated, sheddable request dropped"


@dataclass(frozen=True, slots=True)
class SheddableAdmitter:
    """llm-d's legacy admission with its `utilization-detector`: a request of negative priority is
    refused when the mean over the endpoints of max(waiting / 5, KV usage / 0.8) is 1 or more."""

    queue_depth_threshold: float = 5.0
    kv_cache_util_threshold: float = 0.8

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        if request.objectives.priority >= 0 or self.saturation(candidates) < 1.0:
            return None
        return SATURATED

    def saturation(self, candidates: Candidates) -> float:
        """0: nothing waits and the caches are empty; 1: full."""
        queues = candidates.waiting / self.queue_depth_threshold
        usage = candidates.kv_usage / self.kv_cache_util_threshold
        return float(np.maximum(queues, usage).mean())
