"""Admitters, which refuse requests by how full the engines are."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.expected_latency import EXPECTED_TTFT, check_producer, in_time
from inferway.scheduling.plugin import Admitter
from inferway.scheduling.registry import Building, Parameters, PluginType

SATURATED = "system saturated, sheddable request dropped"

Positive = Annotated[float, Meta(gt=0)]


@runtime_checkable
class SaturationDetector(Admitter, Protocol):
    """Measures how full endpoints are. As an admitter it refuses sheddable requests; with flow
    control (flow_control) they wait instead."""

    @property
    def per_request(self) -> float:
        """The share of an endpoint that a request takes at once; 0 if that shows later."""

    def loads(self, candidates: Candidates) -> Column:
        """Return a number a row: 0 if nothing is to be done, 1 or more if the endpoint is full. The
        mean over endpoints is their saturation."""


def saturated(request: LLMRequest, loads: Column) -> str | None:
    """Return why a request of negative priority must not go in while endpoints are so full."""
    if request.objectives.priority >= 0 or loads.mean() < 1.0:
        return None
    return SATURATED


class UtilizationDetector(Parameters, frozen=True):
    """llm-d's legacy admission with its `utilization-detector`: a request of negative priority is
    refused when the mean over the endpoints of max(waiting / 5, KV usage / 0.8) is 1 or more.

    In a profile it is a filter: endpoints with less than that, plus `headroom`, in both figures;
    all, if there is none.
    """

    queue_depth_threshold: Annotated[int, Meta(ge=1)] = 5
    kv_cache_util_threshold: Annotated[float, Meta(gt=0, le=1)] = 0.8
    headroom: Annotated[float, Meta(ge=0)] = 0.0
    metrics_staleness_threshold: str = ""  # not in force: stale figures fade (docs/metrics.md)

    @property
    def per_request(self) -> float:
        return 0.0

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        if request.objectives.priority >= 0:
            return None
        return saturated(request, self.loads(candidates))

    def loads(self, candidates: Candidates) -> Column:
        queues = candidates.waiting / self.queue_depth_threshold
        usage = candidates.kv_usage / self.kv_cache_util_threshold
        return np.maximum(queues, usage)

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        most = 1.0 + self.headroom
        kept: NDArray[np.bool_] = candidates.waiting < self.queue_depth_threshold * most
        kept &= candidates.kv_usage < self.kv_cache_util_threshold * most
        return kept if kept.any() else ~kept


class ProbabilisticParameters(Parameters, frozen=True):
    queue_depth_threshold: Annotated[int, Meta(ge=1)] = 5
    kv_cache_util_threshold: Positive = 0.8
    power: Positive = 5.0
    k: Positive = 300.0


@dataclass(frozen=True, slots=True)
class ProbabilisticAdmitter:
    """Refuses a request of negative priority with probability min(k * saturation^power, 1)."""

    detector: UtilizationDetector = field(default_factory=UtilizationDetector)
    power: float = 5.0
    k: float = 300.0
    random: Random = field(default_factory=Random)

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        if request.objectives.priority >= 0:
            return None
        saturation = float(self.detector.loads(candidates).mean())
        probability = min(saturation**self.power * self.k, 1.0)
        if self.random.random() >= probability:
            return None
        return (
            f"probabilistic-admitter: rejected, saturation={saturation:.3f} prob={probability:.2f}"
        )


def _probabilistic(
    parameters: ProbabilisticParameters, building: Building
) -> ProbabilisticAdmitter:
    detector = UtilizationDetector(
        queue_depth_threshold=parameters.queue_depth_threshold,
        kv_cache_util_threshold=parameters.kv_cache_util_threshold,
    )
    return ProbabilisticAdmitter(detector, parameters.power, parameters.k, building.random)


COLD_KV_USAGE = 0.02  # of an endpoint with less nothing much is known


class LatencySloParameters(Parameters, frozen=True):
    latency_prediction_info_producer_name: str = ""


class LatencySloAdmitter:
    """Refuses a request of negative priority that says by when it wants tokens, if no endpoint is
    expected to be in time, none is idle and none is cold (llm-d-router ebab687,
    admitter/latencyslo)."""

    __slots__ = ()

    reads_columns = True

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        asked = request.objectives
        if asked.priority >= 0 or (asked.ttft_ms is None and asked.tpot_ms is None):
            return None
        fits = in_time(request, candidates)
        if fits is None or fits.any():
            return None
        if (candidates.running == 0).any() or (candidates.kv_usage < COLD_KV_USAGE).any():
            return None
        return "no endpoint is expected to answer in time, sheddable request dropped"


def _latency_slo(parameters: LatencySloParameters, building: Building) -> LatencySloAdmitter:
    check_producer(parameters.latency_prediction_info_producer_name, building)
    return LatencySloAdmitter()


TYPES = (
    PluginType(
        "utilization-detector",
        "refuses sheddable requests while the saturation mean(max(queue / queueDepthThreshold, "
        "KV usage / kvCacheUtilThreshold)) is 1 or more",
        parameters=UtilizationDetector,
        not_in_force=frozenset({"metricsStalenessThreshold"}),
    ),
    PluginType(
        "probabilistic-admitter",
        "refuses sheddable requests with the probability min(k * saturation^power, 1)",
        _probabilistic,
        ProbabilisticParameters,
    ),
    PluginType(
        "latency-slo-admitter",
        "refuses sheddable requests if no endpoint is expected (expected-ttft) to be in time for "
        "what they ask, none is idle, and none has an empty cache",
        _latency_slo,
        LatencySloParameters,
        needs=lambda _: (EXPECTED_TTFT,),
    ),
)
