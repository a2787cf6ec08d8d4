"""Deciders, which say when a stage of disaggregated serving is worth an engine apart."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from inferway.model import Candidates, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Parameters, PluginType
from inferway_llmd.scheduling.media import media_parts


class Always(Parameters, frozen=True):
    """Decides for a stage of its own for every request."""

    def is_worth_it(
        self, request: LLMRequest, candidates: Candidates, target: Target | None
    ) -> bool:
        return True


class PrefixBased(Parameters, frozen=True):
    """Decides for a stage of its own when the prompt has `prompt_tokens` or more, and
    `non_cached_tokens` or more of them are not held where it is going to be decoded; 0 of the
    latter means never. Blocks count in any tier (llm-d-router ebab687,
    disagg/prefix_based_pd_decider.go)."""

    non_cached_tokens: Annotated[int, Meta(ge=0)] = 0
    prompt_tokens: Annotated[int, Meta(ge=0)] = 0

    def is_worth_it(
        self, request: LLMRequest, candidates: Candidates, target: Target | None
    ) -> bool:
        if self.non_cached_tokens == 0 or target is None:
            return False
        tokens = request.num_prompt_tokens
        if tokens < max(self.prompt_tokens, self.non_cached_tokens):
            return False
        row = candidates.rows[target.endpoint.holder]
        held = target.matched_blocks * int(candidates.block_sizes[row])
        return tokens - held >= self.non_cached_tokens


class Multimodal(Parameters, frozen=True):
    """Decides for a stage of its own when a message has a part that is neither text nor a refusal:
    an image, audio, video."""

    def is_worth_it(
        self, request: LLMRequest, candidates: Candidates, target: Target | None
    ) -> bool:
        return next(media_parts(request.body), None) is not None


ALWAYS = PluginType(
    "always-disagg-pd-decider",
    "computes the prompt on another engine, for every request",
    parameters=Always,
)
PREFIX_BASED = PluginType(
    "prefix-based-pd-decider",
    "computes the prompt on another engine if at least nonCachedTokens of its tokens (0: never) "
    "are not cached on the decoding engine",
    parameters=PrefixBased,
)
MULTIMODAL = PluginType(
    "always-disagg-multimodal-decider",
    "encodes on other engines if the request has images, audio or video",
    parameters=Multimodal,
)
