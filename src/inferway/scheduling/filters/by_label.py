"""Keep the endpoints whose label has one of some values."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from inferway.errors import ConfigError
from inferway.scheduling.filters.labels import LabelFilter, Labels
from inferway.scheduling.registry import Building, Parameters, PluginType


class ByLabelParameters(Parameters, frozen=True):
    label: Annotated[str, Meta(min_length=1)]
    valid_values: tuple[str, ...] = ()
    allows_no_label: bool = False


def by_label(parameters: ByLabelParameters, name: str) -> LabelFilter:
    """Those whose label has one of the values; with `allows_no_label` also those without it."""

    def fits(labels: Labels) -> bool:
        value = labels.get(parameters.label)
        return parameters.allows_no_label if value is None else value in parameters.valid_values

    return LabelFilter(fits, name)


def _build(parameters: ByLabelParameters, building: Building) -> LabelFilter:
    if not parameters.valid_values and not parameters.allows_no_label:
        raise ConfigError("validValues: empty, and allowsNoLabel is false: nothing would be left")
    return by_label(parameters, building.name)


TYPE = PluginType(
    "by-label",
    "keeps the endpoints whose label has one of validValues; with allowsNoLabel, also those "
    "without it",
    _build,
    ByLabelParameters,
)
