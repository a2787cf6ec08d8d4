"""Filter and rate endpoints by one of their metrics, which the operator names.

In llm-d an attribute is what a producer has made of a metric: core-metrics-extractor of those that
its `customMetrics` name. Here an attribute is a metric that the gateway reads of every engine
(model.SCRAPED), by the metric's name with or without what stands before its colon, or by llm-d's
word for it. Attributes of other producers are read of no engine: endpoints are without them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.errors import ConfigError
from inferway.model import SCRAPED, Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Building, NoParameters, Parameters, PluginType

CORE = "core-metrics-extractor"

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}

# llm-d's words for what its extractor always reads.
_COLUMNS = {
    "WaitingQueueSize": "waiting",
    "RunningRequestsSize": "running",
    "KVCacheUsagePercent": "kv_usage",
}
for _column, _figure in SCRAPED.items():
    for _metric in _figure.metrics:
        _COLUMNS[_metric] = _COLUMNS[_metric.rpartition(":")[2]] = _column

Name = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Attribute:
    """`column`: a column of the candidates; None: endpoints are without the attribute."""

    column: str | None

    def values(self, candidates: Candidates) -> Column:
        """Return a value a row, NaN for an endpoint without the attribute."""
        if self.column is None:
            return np.full(len(candidates.endpoints), np.nan)
        values: Column = getattr(candidates, self.column)
        return values


def attribute(key: str, name: str, producer: str | None) -> Attribute:
    """Return the attribute that the parameter `key` names. Raises ConfigError for one that no
    producer has."""
    if producer not in (None, CORE):
        return Attribute(None)
    if name not in _COLUMNS:
        before, slash, after = name.rpartition("/")
        cure = f" (or producer {after!r} and {key} {before!r}?)" if slash else ""
        raise ConfigError(
            f"{key}: {name!r} is no metric that the gateway reads of engines{cure}; known: "
            + ", ".join(sorted(_COLUMNS))
        )
    return Attribute(_COLUMNS[name])


class Threshold(Parameters, frozen=True):
    operator: Literal[
        "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"
    ]
    value: float


class FilterAlgorithm(Parameters, frozen=True, tag_field="type", tag="threshold"):
    """The only one that llm-d has."""

    threshold: Threshold


class EndpointAttributeFilterParameters(Parameters, frozen=True):
    attribute: Name
    algorithm: FilterAlgorithm
    producer: str | None = None
    on_missing: Literal["Pass", "Fail"] = "Pass"
    fallback_on_empty: bool = False


@dataclass(frozen=True, slots=True)
class EndpointAttributeFilter:
    """Keeps the endpoints whose attribute compares to the threshold as the operator says, and those
    without the attribute unless `passes_missing` is false (llm-d-router ebab687,
    filter/endpointattribute)."""

    attribute: Attribute
    compare: Callable[[Column, float], NDArray[np.bool_]]
    threshold: float
    passes_missing: bool = True
    fallback_on_empty: bool = False

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        values = self.attribute.values(candidates)
        missing = np.isnan(values)
        kept = self.compare(values, self.threshold)
        kept = kept | missing if self.passes_missing else kept & ~missing
        return ~kept if self.fallback_on_empty and not kept.any() else kept


class FixedRange(Parameters, frozen=True):
    min: float
    max: float


class Normalization(Parameters, frozen=True):
    fixed_range: FixedRange | None = None
    adaptive_range: NoParameters | None = None


class ScorerAlgorithm(Parameters, frozen=True):
    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    normalization: Normalization = Normalization()


class EndpointAttributeScorerParameters(Parameters, frozen=True):
    attribute_key: Name
    algorithm: ScorerAlgorithm
    producer: str | None = None


@dataclass(frozen=True, slots=True)
class EndpointAttributeScorer:
    """Rates where the attribute lies within `bounds`, or without them between the candidates' least
    and most (all 1 if these are equal); 0 without the attribute (llm-d-router ebab687,
    scorer/endpointattribute)."""

    attribute: Attribute
    lower_is_better: bool
    bounds: tuple[float, float] | None = None

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        values = self.attribute.values(candidates)
        missing = np.isnan(values)
        if missing.all():
            return np.zeros(len(values))
        low, high = self.bounds or (float(np.nanmin(values)), float(np.nanmax(values)))
        if low == high:
            return np.where(missing, 0.0, 1.0)
        rating = np.clip((values - low) / (high - low), 0.0, 1.0)
        if self.lower_is_better:
            rating = 1.0 - rating
        rating[missing] = 0.0
        return rating


def _filter(
    parameters: EndpointAttributeFilterParameters, building: Building
) -> EndpointAttributeFilter:
    threshold = parameters.algorithm.threshold
    return EndpointAttributeFilter(
        attribute("attribute", parameters.attribute, parameters.producer),
        _OPERATORS[threshold.operator],
        threshold.value,
        parameters.on_missing == "Pass",
        parameters.fallback_on_empty,
    )


def _scorer(
    parameters: EndpointAttributeScorerParameters, building: Building
) -> EndpointAttributeScorer:
    normalization = parameters.algorithm.normalization
    fixed = normalization.fixed_range
    if fixed is not None and normalization.adaptive_range is not None:
        raise ConfigError("algorithm.normalization: fixedRange and adaptiveRange; expected one")
    if fixed is not None and fixed.min >= fixed.max:
        raise ConfigError(
            f"algorithm.normalization.fixedRange: min {fixed.min:g}, max {fixed.max:g}; expected"
            " min < max"
        )
    return EndpointAttributeScorer(
        attribute("attributeKey", parameters.attribute_key, parameters.producer),
        parameters.algorithm.type == "linear_lower_is_better",
        None if fixed is None else (fixed.min, fixed.max),
    )


FILTER = PluginType(
    "endpoint-attribute-filter",
    "keeps the endpoints whose attribute, a metric that the gateway reads, compares to a value as "
    "algorithm.threshold says",
    _filter,
    EndpointAttributeFilterParameters,
)
SCORER = PluginType(
    "endpoint-attribute-scorer",
    "scores by where attributeKey, a metric that the gateway reads, lies between two bounds, or "
    "between the candidates' least and most",
    _scorer,
    EndpointAttributeScorerParameters,
)
