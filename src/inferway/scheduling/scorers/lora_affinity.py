"""Prefer the endpoint that has the request's LoRA adapter at hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.adapter_rows import adapter_rows
from inferway.scheduling.registry import PluginType

ACTIVE, ROOM, WAITING = 1.0, 0.8, 0.6


@dataclass(frozen=True, slots=True)
class LoraAffinity:
    """1 where the adapter runs, 0.8 where there is room for one more, 0.6 where it waits to be
    loaded, else 0. A model that is no adapter runs nowhere: for it all that counts is room."""

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        adapters, model = adapter_rows(candidates.adapters), request.target_model
        rating = adapters.room.astype(np.float64)
        rating *= ROOM
        waiting, running = adapters.waiting(model), adapters.running(model)
        if waiting is not None:
            np.maximum(rating, waiting * WAITING, out=rating)
        if running is not None:
            np.maximum(rating, running * ACTIVE, out=rating)
        return rating


TYPE = PluginType(
    "lora-affinity-scorer",
    "scores 1 if the adapter is active, 0.8 if there is room for it, 0.6 if it waits to be loaded, "
    "else 0",
    lambda parameters, building: LoraAffinity(),
)
