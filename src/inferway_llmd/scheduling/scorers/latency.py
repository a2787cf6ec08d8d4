"""Prefer the endpoint whose expected latency fits what the request asks for, by llm-d's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, field
from numpy.typing import NDArray

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.columns import EXPECTED_TPOT_MS, EXPECTED_TTFT_MS
from inferway.scheduling.expected_latency import EXPECTED_TTFT, check_producer
from inferway.scheduling.prefix_source import PRECISE, PrefixSource, prefix_source
from inferway.scheduling.registry import Building, Parameters, PluginType

_STEPS = 100  # llm-d's wMax: scores are whole hundredths
_EPSILON = 1e-9

Weight = Annotated[float, Meta(ge=0)]


class LatencyParameters(Parameters, frozen=True):
    ttft_weight: Weight = 0.8
    tpot_weight: Weight = 0.2
    headroom_selection_strategy: Literal["least", "most"] = "least"
    # Without an expectation:
    composite_kv_weight: Weight = field(default=1.0, name="compositeKVWeight")
    composite_queue_weight: Weight = 1.0
    composite_prefix_weight: Weight = 1.0
    latency_prediction_info_producer_name: str = ""
    prefix_match_info_producer_name: str = ""  # "": the precise one


@dataclass(frozen=True, slots=True)
class LatencyScorer:
    """Headroom: what the request asks for (x-slo-ttft-ms, x-slo-tpot-ms; 0 if it does not) less
    what is expected; of an answer that is not streamed the second is 0. One group is rated, the
    first of these that is not empty, and all others get 0:

    no headroom below 0, or nothing expected
    no request of ours in flight
    only the second below 0
    only the first below 0
    both below 0

    In the group each headroom's size counts by where it lies between the extremes (0.5 if all are
    equal; then, if the other's are not, only that one counts), weighed by `ttftWeight` and
    `tpotWeight`: x. "least" rates 1 - x, "most" rates x, and groups below 0 are always rated
    "least". The score is a hundredth more than that, cut to hundredths, at most 1.

    If nothing is expected of any endpoint: (KV blocks free, (max queue - queue) / max queue, share
    of the prompt held), weighed, rounded to hundredths (llm-d-router ebab687, scorer/latency).
    """

    parameters: LatencyParameters
    prefix: PrefixSource

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        ttft = candidates.get(EXPECTED_TTFT_MS)
        if ttft is None:
            return self._composite(candidates)
        asked = request.objectives
        first = _headroom(asked.ttft_ms, ttft)
        second = np.zeros(len(first))
        tpot = candidates.get(EXPECTED_TPOT_MS)
        if tpot is not None and getattr(request.body, "stream", None):
            second = _headroom(asked.tpot_ms, tpot)
        group, least = self._group(first, second, candidates.in_flight)
        if group.all():
            return self._rated(np.abs(first), np.abs(second), least)
        scores = np.zeros(len(first))
        scores[group] = self._rated(np.abs(first[group]), np.abs(second[group]), least)
        return scores

    def _group(
        self, first: Column, second: Column, in_flight: Column
    ) -> tuple[NDArray[np.bool_], bool]:
        """The rows to rate, and whether by "least"."""
        late, slow = first < 0, second < 0
        fitting = ~(late | slow)
        if fitting.any():
            return fitting, self.parameters.headroom_selection_strategy == "least"
        for group in (in_flight == 0, slow & ~late, late & ~slow):
            if group.any():
                return group, True
        return late & slow, True

    def _rated(self, first: Column, second: Column, least: bool) -> Column:
        first_weight, second_weight = self._weights()
        firsts, seconds = _extent(first), _extent(second)
        if firsts <= _EPSILON < seconds:
            first_weight, second_weight = 0.0, 1.0
        elif seconds <= _EPSILON < firsts:
            first_weight, second_weight = 1.0, 0.0
        x = np.zeros(len(first))
        x += first_weight * _placed(first, firsts)
        x += second_weight * _placed(second, seconds)
        steps = 1.0 - x if least else x
        steps *= _STEPS
        np.trunc(steps, out=steps)
        steps += 1
        steps /= _STEPS
        scores: Column = np.minimum(steps, 1.0, out=steps)
        return scores

    def _weights(self) -> tuple[float, float]:
        first, second = self.parameters.ttft_weight, self.parameters.tpot_weight
        whole = first + second
        return (first / whole, second / whole) if whole > 0 else (1.0, 0.0)

    def _composite(self, candidates: Candidates) -> Column:
        p = self.parameters
        weights = (p.composite_kv_weight, p.composite_queue_weight, p.composite_prefix_weight)
        whole = sum(weights)
        kv, queue, prefix = [w / whole for w in weights] if whole > 0 else (1.0, 0.0, 0.0)
        longest = float(candidates.waiting.max())
        shorter = 1.0 - candidates.waiting / longest if longest > 0 else 1.0
        held = self.prefix.value(candidates) / np.maximum(self.prefix.total(candidates), 1.0)
        score = kv * (1.0 - candidates.kv_usage) + queue * shorter + prefix * held
        rounded: Column = np.floor(score * _STEPS + 0.5) / _STEPS  # as Go rounds
        return np.clip(rounded, 0.0, 1.0, out=rounded)


def _headroom(asked: float | None, expected: Column) -> Column:
    """0 where nothing is expected."""
    headroom = (asked or 0.0) - expected
    headroom[np.isnan(headroom)] = 0.0
    return headroom


def _extent(column: Column) -> float:
    return column.item(column.argmax()) - column.item(column.argmin())


def _placed(column: Column, extent: float) -> Column | float:
    """0 to 1; 0.5 for all if they are equal."""
    if extent <= _EPSILON:
        return 0.5
    placed: Column = (column - column.item(column.argmin())) / extent
    return placed


def _build(parameters: LatencyParameters, building: Building) -> LatencyScorer:
    check_producer(parameters.latency_prediction_info_producer_name, building)
    name = parameters.prefix_match_info_producer_name
    return LatencyScorer(parameters, prefix_source(name, PRECISE, building))


def _needs(parameters: LatencyParameters) -> Sequence[str]:
    prefix = parameters.prefix_match_info_producer_name
    return (EXPECTED_TTFT, prefix) if prefix else (EXPECTED_TTFT,)


TYPE = PluginType(
    "latency-scorer",
    "scores by the difference between the latency that the request asks for and the expected one "
    "(expected-ttft)",
    _build,
    LatencyParameters,
    needs=_needs,
)
