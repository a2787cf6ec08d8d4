"""Keep the endpoints with certain labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, field
from numpy.typing import NDArray

from inferway.errors import ConfigError
from inferway.model import ROLE, Candidates, Endpoint
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway.scheduling.registry import Building, NoParameters, Parameters, PluginType

Labels = Mapping[str, str]

# values of the label ROLE (llm-d-router ebab687, filter/bylabel)
_ALL = "encode-prefill-decode"
_TWO = ("prefill-decode", "both")  # the second is the older word


class LabelFilter:
    """Keeps those whose labels `fits` says yes to. `name`: for who asks why none is left."""

    __slots__ = ("_kept", "name")

    def __init__(self, fits: Callable[[Labels], bool], name: str) -> None:
        self.name = name

        def kept(endpoints: Sequence[Endpoint]) -> NDArray[np.bool_]:
            return np.array([fits(endpoint.labels) for endpoint in endpoints], np.bool_)

        self._kept = PerEndpoint(kept)

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        return self._kept(candidates.endpoints)


class Expression(Parameters, frozen=True):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()

    def fits(self, labels: Labels) -> bool:
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


class LabelSelector(Parameters, frozen=True):
    """Kubernetes' metav1.LabelSelector: all of it must hold; an empty one selects everything."""

    match_labels: Mapping[str, str] = field(default_factory=dict)
    match_expressions: tuple[Expression, ...] = ()

    def fits(self, labels: Labels) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.fits(labels) for expression in self.match_expressions
        )


class ByLabelParameters(Parameters, frozen=True):
    """A label must have one of the values; with `allows_no_label` it may be missing, too."""

    label: Annotated[str, Meta(min_length=1)]
    valid_values: tuple[str, ...] = ()
    allows_no_label: bool = False

    def fits(self, labels: Labels) -> bool:
        value = labels.get(self.label)
        return self.allows_no_label if value is None else value in self.valid_values


def _by_selector(selector: LabelSelector, building: Building) -> LabelFilter:
    for number, expression in enumerate(selector.match_expressions):
        wants_values = expression.operator in ("In", "NotIn")
        if wants_values != bool(expression.values):
            which = "at least one" if wants_values else "none"
            raise ConfigError(
                f"matchExpressions[{number}].values: {list(expression.values)!r}; operator "
                f"{expression.operator} takes {which}"
            )
    return LabelFilter(selector.fits, building.name)


def _by_label(parameters: ByLabelParameters, building: Building) -> LabelFilter:
    if not parameters.valid_values and not parameters.allows_no_label:
        raise ConfigError("validValues: empty, and allowsNoLabel is false: nothing would be left")
    return LabelFilter(parameters.fits, building.name)


def _role(name: str, about: str, *values: str, allows_none: bool = False) -> PluginType:
    label = ByLabelParameters(label=ROLE, valid_values=values, allows_no_label=allows_none)

    def build(_: NoParameters, building: Building) -> LabelFilter:
        return LabelFilter(label.fits, building.name)

    return PluginType(name, f"keeps the endpoints that {about}", build)


_BY_ROLE = "by the label llm-d.ai/role"

TYPES = (
    PluginType(
        "label-selector-filter",
        "keeps the endpoints that matchLabels and matchExpressions select",
        _by_selector,
        LabelSelector,
    ),
    PluginType(
        "by-label-selector",
        "the older name of label-selector-filter",
        _by_selector,
        LabelSelector,
    ),
    PluginType(
        "by-label",
        "keeps the endpoints whose label has one of validValues; with allowsNoLabel, also those "
        "without it",
        _by_label,
        ByLabelParameters,
    ),
    _role(
        "decode-filter",
        f"decode, {_BY_ROLE}, and those without the label",
        *("decode", *_TWO, _ALL),
        allows_none=True,
    ),
    _role("prefill-filter", f"prefill, {_BY_ROLE}", "prefill", "encode-prefill", *_TWO, _ALL),
    _role("encode-filter", f"encode media, {_BY_ROLE}", "encode", "encode-prefill", _ALL),
)
