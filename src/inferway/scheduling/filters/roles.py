"""Keep the endpoints of a role in disaggregated serving (llm-d-router ebab687, filter/bylabel)."""

from __future__ import annotations

from inferway.scheduling.filters.by_label import ByLabelParameters, by_label
from inferway.scheduling.filters.labels import LabelFilter
from inferway.scheduling.registry import Building, PluginType

ROLE = "llm-d.ai/role"
_ALL = "encode-prefill-decode"
_TWO = ("prefill-decode", "both")  # the second is the older word


def _role(building: Building, *values: str, allows_none: bool = False) -> LabelFilter:
    parameters = ByLabelParameters(label=ROLE, valid_values=values, allows_no_label=allows_none)
    return by_label(parameters, building.name)


DECODE = PluginType(
    "decode-filter",
    "keeps the endpoints that decode, by the label llm-d.ai/role, and those without the label",
    lambda parameters, building: _role(building, "decode", *_TWO, _ALL, allows_none=True),
)
PREFILL = PluginType(
    "prefill-filter",
    "keeps the endpoints that prefill, by the label llm-d.ai/role",
    lambda parameters, building: _role(building, "prefill", "encode-prefill", *_TWO, _ALL),
)
ENCODE = PluginType(
    "encode-filter",
    "keeps the endpoints that encode media, by the label llm-d.ai/role",
    lambda parameters, building: _role(building, "encode", "encode-prefill", _ALL),
)
