"""Keep the endpoints that hold most of the prompt, unless they are too busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.model import Candidates, Column, ColumnKey
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_latency import EXPECTED_TTFT, check_producer
from inferway.scheduling.prefix_source import APPROXIMATE, PrefixSource, prefix_source
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway_llmd.scheduling.producers.inflight_load import INFLIGHT_LOAD, token_column_of

Share = Annotated[float, Meta(ge=0, le=1)]
NotNegative = Annotated[float, Meta(ge=0)]


class PrefixCacheAffinityParameters(Parameters, frozen=True):
    affinity_threshold: Share = 0.8
    exploration_probability: Share = 0.0
    max_ttft_penalty_ms: NotNegative = msgspec.field(default=18_000.0, name="maxTTFTPenaltyMs")
    max_tokens_in_flight_penalty: NotNegative = 0.0
    prefix_match_info_producer_name: str = ""  # "": the approximate one
    latency_prediction_info_producer_name: str = ""
    in_flight_load_producer_name: str = ""
    # Not in force: what llm-d estimates milliseconds by. Here they are learned.
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput"
    peak_prefill_throughput: NotNegative = 15_928.0
    prefill_calibration_file: str = ""
    prefill_calibration_fingerprint: str = ""
    prefill_calibration_required: bool = False


NOT_IN_FORCE = frozenset(
    {
        "ttftSource",
        "peakPrefillThroughput",
        "prefillCalibrationFile",
        "prefillCalibrationFingerprint",
        "prefillCalibrationRequired",
    }
)


@dataclass(frozen=True, slots=True)
class PrefixCacheAffinity:
    """Keeps the endpoints that hold at least the share `affinity_threshold` of the prompt, and all
    endpoints in these cases:

    - none holds so much, or the threshold is 0;
    - the best of those that do is expected to begin its answer more than `max_ttft_penalty_ms`
      later than the best other, or has more tokens in flight than it by more than
      `max_tokens_in_flight_penalty` (0 of either: it does not matter);
    - nothing is expected yet of one of the two;
    - with the probability `exploration_probability`.

    (llm-d-router 066c20e, filter/prefixcacheaffinity.)
    """

    parameters: PrefixCacheAffinityParameters
    prefix: PrefixSource
    tokens: ColumnKey[Column] | None = None  # None: not limited
    random: Random = field(default_factory=Random)

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        p = self.parameters
        everyone = np.ones(len(candidates.endpoints), np.bool_)
        if p.affinity_threshold == 0 or self.random.random() < p.exploration_probability:
            return everyone
        match = self.prefix.match(candidates)
        if match is None:
            return everyone
        holds = match.value >= p.affinity_threshold * np.maximum(match.total, 1.0)
        if not 0 < np.count_nonzero(holds) < len(everyone):
            return everyone
        if p.max_ttft_penalty_ms > 0:
            expected = candidates.get(EXPECTED_TTFT_MS)
            if expected is None or _is_worse(expected, holds, p.max_ttft_penalty_ms):
                return everyone
        if self.tokens is not None:
            tokens = candidates.get(self.tokens)
            if tokens is None or _is_worse(tokens, holds, p.max_tokens_in_flight_penalty):
                return everyone
        return holds


def _is_worse(column: Column, holds: NDArray[np.bool_], most: float) -> bool:
    """Return whether the best that holds is worse than the best other by more than `most`, or of
    one of them nothing is known."""
    known = ~np.isnan(column)
    holding, others = column[holds & known], column[~holds & known]
    if not len(holding) or not len(others):
        return True
    return float(holding.min() - others.min()) > most


def _build(parameters: PrefixCacheAffinityParameters, building: Building) -> PrefixCacheAffinity:
    check_producer(parameters.latency_prediction_info_producer_name, building)
    return PrefixCacheAffinity(
        parameters,
        prefix_source(parameters.prefix_match_info_producer_name, APPROXIMATE, building),
        token_column_of(parameters.in_flight_load_producer_name, building)
        if parameters.max_tokens_in_flight_penalty > 0
        else None,
        building.random,
    )


def _needs(parameters: PrefixCacheAffinityParameters) -> Sequence[str]:
    needed = [parameters.prefix_match_info_producer_name or APPROXIMATE]
    if parameters.max_ttft_penalty_ms > 0:
        needed.append(EXPECTED_TTFT)
    if parameters.max_tokens_in_flight_penalty > 0:
        needed.append(parameters.in_flight_load_producer_name or INFLIGHT_LOAD)
    return needed


TYPE = PluginType(
    "prefix-cache-affinity-filter",
    "keeps the endpoints that hold affinityThreshold of the prompt, unless their answer is expected"
    " (expected-ttft) more than maxTTFTPenaltyMs after the best other's",
    _build,
    PrefixCacheAffinityParameters,
    needs=_needs,
    not_in_force=NOT_IN_FORCE,
)
