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
from inferway.scheduling.of_endpoints import OfEndpoints
from inferway.scheduling.prompt_tokens import prompt_tokens
from inferway.scheduling.registry import Building, Parameters, PluginType

LABEL = "llm-d.ai/context-length-range"
_OUT, _NO_LABEL, _BAD_LABEL = 0.3, 0.5, 0.0  # what is out of range stays below what is in it


class ContextLengthParameters(Parameters, frozen=True):
    label: Annotated[str, Meta(min_length=1)] = LABEL  # its value: "min-max", in tokens
    enable_filtering: bool = False


class _Ranges(msgspec.Struct, frozen=True):
    """One value a row."""

    least: Column
    most: Column
    width: Column  # at least 1: the width of a range of one length does not matter
    fixed: Column  # the score of those without a range, NaN for the others
    unbound: NDArray[np.bool_]  # without the label


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

    ranges: OfEndpoints[_Ranges]

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        ranges, tokens = self.ranges(candidates.endpoints), prompt_tokens(request)
        headroom = ranges.most - tokens
        short = ranges.least - tokens
        inside = 0.3 * headroom / ranges.width + 0.7 / (1.0 + ranges.width / 10_000.0)
        inside = _OUT + (1.0 - _OUT) * inside
        inside[ranges.most == ranges.least] = 1.0
        distance = np.maximum(short, -headroom)
        score = np.where(distance <= 0, inside, _OUT / (1.0 + np.maximum(distance, 0.0) / 1000.0))
        return np.where(np.isnan(ranges.fixed), score, ranges.fixed)


@dataclass(slots=True)
class ContextLengthFilter(ContextLengthAware):
    """With `enableFiltering`: those whose range the prompt is not in are left out, too."""

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        ranges, tokens = self.ranges(candidates.endpoints), prompt_tokens(request)
        inside: NDArray[np.bool_] = (ranges.least <= tokens) & (tokens <= ranges.most)
        return (inside & np.isnan(ranges.fixed)) | ranges.unbound


def _ranges(endpoints: Sequence[Endpoint], label: str) -> _Ranges:
    size = len(endpoints)
    least, most, fixed = np.zeros(size), np.zeros(size), np.full(size, np.nan)
    unbound = np.zeros(size, np.bool_)
    for row, endpoint in enumerate(endpoints):
        value = endpoint.labels.get(label)
        bounds = None if value is None else _bounds(value)
        if value is None:
            fixed[row], unbound[row] = _NO_LABEL, True
        elif bounds is None:
            fixed[row] = _BAD_LABEL
        else:
            least[row], most[row] = bounds
    return _Ranges(least, most, np.maximum(most - least, 1.0), fixed, unbound)


def _bounds(value: str) -> tuple[int, int] | None:
    """Of "min-max"; None if it is not that."""
    least, _, most = value.partition("-")
    try:
        bounds = int(least), int(most)
    except ValueError:
        return None
    return bounds if bounds[0] <= bounds[1] else None


def _build(parameters: ContextLengthParameters, building: Building) -> ContextLengthAware:
    kind = ContextLengthFilter if parameters.enable_filtering else ContextLengthAware
    return kind(OfEndpoints(lambda endpoints: _ranges(endpoints, parameters.label)))


TYPE = PluginType(
    "context-length-aware",
    "by the label with the range of prompt lengths that the endpoint is meant for",
    _build,
    ContextLengthParameters,
)
