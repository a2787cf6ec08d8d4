"""The latency that a request asks for, against the one expected: for all plugins that read the
columns of expected-ttft."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferway.errors import ConfigError
from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.columns import EXPECTED_TPOT_MS, EXPECTED_TTFT_MS
from inferway.scheduling.registry import Building

EXPECTED_TTFT = "expected-ttft"  # the type that produces what is read here
PREDICTED = "predicted-latency-producer"  # in llm-d; here expected-ttft in its place


def in_time(request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_] | None:
    """Return True for each endpoint whose answer is expected to be in time for what the request
    asks of its first token and, if it is streamed, of each further one. What it does not ask does
    not count. None if nothing is expected of any endpoint."""
    ttft = candidates.get(EXPECTED_TTFT_MS)
    if ttft is None or np.isnan(ttft).all():
        return None
    asked = request.objectives
    fits: NDArray[np.bool_] = ~np.isnan(ttft)
    if asked.ttft_ms is not None:
        fits &= ttft <= asked.ttft_ms
    tpot = candidates.get(EXPECTED_TPOT_MS)
    if asked.tpot_ms is not None and tpot is not None and getattr(request.body, "stream", None):
        fits &= tpot <= asked.tpot_ms
    return fits


def check_producer(name: str, building: Building) -> None:
    """Raises ConfigError unless `latencyPredictionInfoProducerName` names the plugin that expects
    latencies, or leaves it to us."""
    if name and building.type_of(name) not in (EXPECTED_TTFT, PREDICTED):
        raise ConfigError(
            f"latencyPredictionInfoProducerName: {name!r} is no plugin that expects latencies; "
            f"expected one of type {EXPECTED_TTFT}"
        )
