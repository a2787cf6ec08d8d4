"""Prefer the endpoints with what the request names: its LoRA adapter, or a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.model import Candidates, Column, Endpoint
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.adapter_rows import adapter_rows
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway.scheduling.registry import Building, Parameters, PluginType

ACTIVE, ROOM, WAITING = 1.0, 0.8, 0.6

Name = Annotated[str, Meta(min_length=1)]


class LoraAffinity(Parameters, frozen=True):
    """Rates 1 where the adapter runs, 0.8 where there is room for one more, 0.6 where it waits to
    be loaded, else 0. A model that is no adapter runs nowhere: for it all that counts is room."""

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


class HeaderLabelParameters(Parameters, frozen=True):
    header_name: Name
    label_key: Name


@dataclass(slots=True)
class HeaderLabelAffinity:
    """Rates 1 where the label has the header's value, else 0; 0 for all without the header."""

    header: bytes
    rows: PerEndpoint[dict[str, NDArray[np.intp]]]  # by the label's value

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        scores = np.zeros(len(candidates.endpoints))
        value = request.header(self.header)
        if value:
            rows = self.rows(candidates.endpoints).get(value.decode("latin-1"))
            if rows is not None:
                scores[rows] = 1.0
        return scores


def _rows(endpoints: Sequence[Endpoint], label: str) -> dict[str, NDArray[np.intp]]:
    rows: dict[str, list[int]] = {}
    for row, endpoint in enumerate(endpoints):
        if label in endpoint.labels:
            rows.setdefault(endpoint.labels[label], []).append(row)
    return {value: np.array(at, np.intp) for value, at in rows.items()}


def _header_label(parameters: HeaderLabelParameters, building: Building) -> HeaderLabelAffinity:
    header = parameters.header_name.lower().encode("latin-1", "replace")
    return HeaderLabelAffinity(
        header, PerEndpoint(lambda endpoints: _rows(endpoints, parameters.label_key))
    )


LORA = PluginType(
    "lora-affinity-scorer",
    "scores 1 if the adapter is active, 0.8 if there is room for it, 0.6 if it waits to be loaded, "
    "else 0",
    parameters=LoraAffinity,
)
HEADER_LABEL = PluginType(
    "header-label-affinity-scorer",
    "scores 1 for endpoints whose label labelKey equals the request's header headerName, else 0",
    _header_label,
    HeaderLabelParameters,
)
