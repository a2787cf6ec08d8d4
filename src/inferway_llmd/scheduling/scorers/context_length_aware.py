"""Prefer the endpoint that is meant for prompts as long as this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.model import Candidates, Column, Endpoint
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway.scheduling.registry import Building, Parameters, PluginType

LABEL = "llm-d.ai/context-length-range"
_OUT, _NO_LABEL, _BAD_LABEL = 0.3, 0.5, 0.0  # what is out of range stays below what is in it


class ContextLengthParameters(Parameters, frozen=True):
    label: Annotated[str, Meta(min_length=1)] = LABEL  # its value: "min-max", in tokens
    enable_filtering: bool = False


class _Ranges(msgspec.Struct, frozen=True):
    """One value a row. In its range a row scores `base - slope * n`; one without a range is
    always in it."""

    least: Column
    most: Column
    base: Column
    slope: Column
    kept: NDArray[np.bool_]  # no filter leaves it out for its label


@dataclass(slots=True)
class ContextLengthAware:
    """n: the prompt's tokens; w: the width of the endpoint's range; d: how far n is out of it.

    in it, w > 0    0.3 + 0.7 * (0.7 / (1 + w / 10000) + 0.3 * (max - n) / w)
    in it, w = 0    1
    out of it       0.3 / (1 + d / 1000)
    no label        0.5
    no range        0, and filtered away

    (llm-d-router ebab687, scorer/contextlengthaware.) A prompt whose tokens are not known counts
    a quarter of its body's bytes; in llm-d 0.
    """

    ranges: PerEndpoint[_Ranges]

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        ranges, tokens = self.ranges(candidates.endpoints), request.num_prompt_tokens
        score = ranges.slope * -tokens
        score += ranges.base
        distance = np.maximum(ranges.least - tokens, tokens - ranges.most)
        if distance.item(distance.argmax()) > 0:
            out = distance > 0
            score[out] = _OUT / (1.0 + distance[out] / 1000.0)
        return score


@dataclass(slots=True)
class ContextLengthFilter(ContextLengthAware):
    """Leaves out endpoints whose range does not include the prompt (`enableFiltering`)."""

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        ranges, tokens = self.ranges(candidates.endpoints), request.num_prompt_tokens
        inside: NDArray[np.bool_] = (ranges.least <= tokens) & (tokens <= ranges.most)
        return inside & ranges.kept


def _ranges(endpoints: Sequence[Endpoint], label: str) -> _Ranges:
    size = len(endpoints)
    least, most = np.full(size, -np.inf), np.full(size, np.inf)
    base, slope = np.full(size, _NO_LABEL), np.zeros(size)
    kept = np.ones(size, np.bool_)
    for row, endpoint in enumerate(endpoints):
        value = endpoint.labels.get(label)
        if value is None:
            continue
        bounds = _bounds(value)
        if bounds is None:
            base[row], kept[row] = _BAD_LABEL, False
        else:
            least[row], most[row] = bounds
            base[row], slope[row] = _inside(*bounds)
    return _Ranges(least, most, base, slope, kept)


def _inside(least: int, most: int) -> tuple[float, float]:
    """`base` and `slope`."""
    width = most - least
    if width == 0:
        return 1.0, 0.0
    slope = (1.0 - _OUT) * 0.3 / width
    return _OUT + (1.0 - _OUT) * 0.7 / (1.0 + width / 10_000.0) + slope * most, slope


def _bounds(value: str) -> tuple[int, int] | None:
    """Return the bounds of "min-max"; None if it is not that."""
    least, _, most = value.partition("-")
    try:
        bounds = int(least), int(most)
    except ValueError:
        return None
    return bounds if bounds[0] <= bounds[1] else None


def _build(parameters: ContextLengthParameters, building: Building) -> ContextLengthAware:
    kind = ContextLengthFilter if parameters.enable_filtering else ContextLengthAware
    return kind(PerEndpoint(lambda endpoints: _ranges(endpoints, parameters.label)))


TYPE = PluginType(
    "context-length-aware",
    "scores by the range of prompt lengths in the endpoint's label; with enableFiltering, also "
    "removes endpoints whose range does not fit",
    _build,
    ContextLengthParameters,
)
