"""Prefer the endpoint that has the fewest of our requests in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Building, Parameters, PluginType


class ActiveRequestParameters(Parameters, frozen=True):
    idle_threshold: Annotated[int, Meta(ge=0)] = 0
    max_busy_score: Annotated[float, Meta(ge=0, le=1)] = 1.0
    request_timeout: str = ""  # not in force, nor in llm-d
    in_flight_load_producer_name: str = ""  # not in force: the count is always there


@dataclass(frozen=True, slots=True)
class ActiveRequest:
    """1 for an endpoint with at most `idle_threshold` requests; for a busy one
    (most - c) / most * `max_busy_score`, where `most` is what the busiest has."""

    idle_threshold: int = 0
    max_busy_score: float = 1.0

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        requests = candidates.in_flight
        most = requests.item(requests.argmax())
        if most <= self.idle_threshold:
            return np.ones(len(requests))
        rating = most - requests
        rating *= self.max_busy_score / most
        rating[requests <= self.idle_threshold] = 1.0
        return rating


def _build(parameters: ActiveRequestParameters, building: Building) -> ActiveRequest:
    return ActiveRequest(parameters.idle_threshold, parameters.max_busy_score)


TYPE = PluginType(
    "active-request-scorer",
    "scores 1 for an endpoint with at most idleThreshold of the gateway's requests in flight, else "
    "(max - c) / max * maxBusyScore for c requests",
    _build,
    ActiveRequestParameters,
    not_in_force=frozenset({"requestTimeout", "inFlightLoadProducerName"}),
)
