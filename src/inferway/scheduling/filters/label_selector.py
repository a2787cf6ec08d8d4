"""Keep the endpoints that a Kubernetes label selector selects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import field

from inferway.errors import ConfigError
from inferway.scheduling.filters.labels import LabelFilter, Labels
from inferway.scheduling.registry import Building, Parameters, PluginType


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
    """metav1.LabelSelector: all of it must hold; an empty one selects everything."""

    match_labels: Mapping[str, str] = field(default_factory=dict)
    match_expressions: tuple[Expression, ...] = ()

    def fits(self, labels: Labels) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.fits(labels) for expression in self.match_expressions
        )


def _build(selector: LabelSelector, building: Building) -> LabelFilter:
    for number, expression in enumerate(selector.match_expressions):
        wants_values = expression.operator in ("In", "NotIn")
        if wants_values != bool(expression.values):
            which = "at least one" if wants_values else "none"
            raise ConfigError(
                f"matchExpressions[{number}].values: {list(expression.values)!r}; operator "
                f"{expression.operator} takes {which}"
            )
    return LabelFilter(selector.fits, building.name)


_ABOUT = "keeps the endpoints that matchLabels and matchExpressions select"

TYPE = PluginType("label-selector-filter", _ABOUT, _build, LabelSelector)
OLD_TYPE = PluginType(
    "by-label-selector", "the older name of label-selector-filter", _build, LabelSelector
)
