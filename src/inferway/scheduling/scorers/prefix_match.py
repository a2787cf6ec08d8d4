"""Prefer the endpoint that already holds the prompt, as the engines' own events say."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import field

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.prefix_source import TRUST
from inferway.scheduling.registry import Parameters, PluginType


class PrefixMatch(Parameters, frozen=True):
    """Rates the share of the prompt's full blocks that the endpoint holds, 0 when it has none.
    Blocks in lower tiers count for less, and so does what nothing confirms (`Candidates.states`).

    What llm-d sets its tokenizer, index and event sockets up by is always there here, and set up
    elsewhere (docs/configuration.md): none of the parameters is in force.
    """

    token_processor_config: dict[str, Any] | None = None
    indexer_config: dict[str, Any] | None = None
    kv_events_config: dict[str, Any] | None = None
    speculative_indexing: bool = False
    speculative_ttl: str = field(default="", name="speculativeTTL")

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        share = candidates.weighted_matched_blocks / np.maximum(candidates.prompt_blocks, 1.0)
        share *= TRUST[candidates.states]
        return share


TYPE = PluginType(
    "precise-prefix-cache-scorer",
    "scores matched / total blocks, by the engines' KV events",
    parameters=PrefixMatch,
    not_in_force=frozenset(PrefixMatch.__struct_encode_fields__),
)
