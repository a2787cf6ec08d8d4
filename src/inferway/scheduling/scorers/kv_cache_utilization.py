"""Prefer the endpoint whose cache is emptier."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import PluginType


@dataclass(frozen=True, slots=True)
class KVCacheUtilization:
    """1 - usage."""

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        free = 1.0 - candidates.kv_usage
        return np.maximum(free, 0.0, out=free)  # engines round


TYPE = PluginType(
    "kv-cache-utilization-scorer",
    "scores 1 - the used share of the engine's KV blocks",
    lambda parameters, building: KVCacheUtilization(),
)
