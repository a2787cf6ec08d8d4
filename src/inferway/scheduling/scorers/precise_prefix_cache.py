"""llm-d's older name for a prefix-cache-scorer that reads the precise figures."""

from __future__ import annotations

from typing import Any

from msgspec import field

from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway.scheduling.scorers.prefix_match import PrefixMatch


class PrecisePrefixCacheParameters(Parameters, frozen=True):
    """What llm-d sets its tokenizer, index and event sockets up by. Here they are always there,
    and set up elsewhere (docs/configuration.md): none of it is in force."""

    token_processor_config: dict[str, Any] | None = None
    indexer_config: dict[str, Any] | None = None
    kv_events_config: dict[str, Any] | None = None
    speculative_indexing: bool = False
    speculative_ttl: str = field(default="", name="speculativeTTL")


def _build(parameters: PrecisePrefixCacheParameters, building: Building) -> PrefixMatch:
    return PrefixMatch()


TYPE = PluginType(
    "precise-prefix-cache-scorer",
    "scores matched / total blocks, by the engines' KV events",
    _build,
    PrecisePrefixCacheParameters,
    not_in_force=frozenset(PrecisePrefixCacheParameters.__struct_encode_fields__),
)
