"""Prefer the endpoint that has the request's LoRA adapter at hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferway.model import Adapters, Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import PluginType

ACTIVE, ROOM, WAITING, NONE = 1.0, 0.8, 0.6, 0.0


@dataclass(frozen=True, slots=True)
class LoraAffinity:
    """1 where the adapter runs, 0.8 where there is room for one more, 0.6 where it waits to be
    loaded, else 0. A model that is no adapter runs nowhere: for it all that counts is room."""

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        model = request.target_model
        return np.array([_rating(adapters, model) for adapters in candidates.adapters])


def _rating(adapters: Adapters, model: str) -> float:
    if model in adapters.running:
        return ACTIVE
    if len(adapters.running) + len(adapters.waiting) < adapters.most:
        return ROOM
    return WAITING if model in adapters.waiting else NONE


TYPE = PluginType(
    "lora-affinity-scorer",
    "adapter active: 1; room for one more: 0.8; waiting to be loaded: 0.6; else 0",
    lambda parameters, building: LoraAffinity(),
)
