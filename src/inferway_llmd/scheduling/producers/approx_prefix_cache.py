"""The approximate prefix cache of each endpoint, by what was sent where: for engines whose events
we do not get, and prompts that we cannot derive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from inferway.errors import ConfigError
from inferway.model import Candidates, Endpoint, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import BYTES_PER_TOKEN, LLMRequest
from inferway.openai_api.requests import reads_cache
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway.scheduling.plugin import RequestListener
from inferway.scheduling.prefix_source import APPROXIMATE, ApproximatePrefixSource
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway_llmd.scheduling.producers.prompt_bytes import (
    block_hashes,
    prompt_bytes,
    setting_bytes,
)
from inferway_llmd.scheduling.producers.sent_blocks import SentBlocks

Count = Annotated[int, Meta(ge=0)]
_ALL = 2**31  # blocks: more than any prompt has


class ApproxPrefixCacheParameters(Parameters, frozen=True):
    auto_tune: bool = True  # blocks as large as the engines', where they tell
    block_size_tokens: Annotated[int, Meta(ge=1)] = 16
    block_size: Count = 0  # older name of blockSizeTokens; 0: not given
    max_prefix_blocks_to_match: Count = 256  # 0: all
    max_prefix_tokens_to_match: Count = 0  # if it is given, instead of the blocks
    lru_capacity_per_server: Annotated[int, Meta(ge=1)] = 31_250


@dataclass(slots=True)
class ApproxPrefixCache:
    """Cuts what the request says (prompt_bytes) into blocks of four bytes a token, and hashes each
    with all before it; the first with model, cache salt and settings. An endpoint holds the blocks
    that were sent there last (llm-d-inference-scheduler 520af47, dataproducer/approximateprefix).
    Several prompts of one request add up."""

    source: ApproximatePrefixSource
    parameters: ApproxPrefixCacheParameters
    sent: SentBlocks
    _fleet: dict[str, Sequence[Endpoint]] = field(default_factory=dict)  # by model
    _places: PerEndpoint[NDArray[np.intp]] = field(init=False)
    _version: int = -1  # of `sent`, that the places hold for
    _last: tuple[LLMRequest, list[list[int]]] | None = None  # what was produced for it

    def __post_init__(self) -> None:
        self._forget_places()

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        endpoints = candidates.endpoints
        if self._fleet.get(request.target_model) is not endpoints:
            self._changed(request.target_model, endpoints)
        size, block_tokens = len(endpoints), self._block_tokens(candidates)
        prompts = self._hashes(request, block_tokens)
        self._last = (request, prompts)
        held = np.zeros(size)
        places = self._places_of(endpoints)
        for hashes in prompts if reads_cache(request.body) else ():
            held += self.sent.held(hashes)[places]
        source = self.source
        candidates.add(source.held, held)
        candidates.add(source.prompt_blocks, np.full(size, float(sum(map(len, prompts)))))
        candidates.add(source.block_tokens, np.full(size, float(block_tokens)))

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener:
        last = self._last
        if last is not None and last[0] is request:
            return _SentBlocksListener(self, choice, last[1])
        return _SentBlocksListener(
            self, choice, self._hashes(request, self._block_tokens(candidates))
        )

    def _places_of(self, endpoints: Sequence[Endpoint]) -> NDArray[np.intp]:
        if self._version != self.sent.version:
            self._forget_places()
        return self._places(endpoints)

    def _forget_places(self) -> None:
        sent = self.sent
        self._version = sent.version
        self._places = PerEndpoint(lambda endpoints: sent.places(each.name for each in endpoints))

    def _block_tokens(self, candidates: Candidates) -> int:
        told = int(candidates.block_sizes[0]) if self.parameters.auto_tune else 0
        return told or self.parameters.block_size or self.parameters.block_size_tokens

    def _hashes(self, request: LLMRequest, block_tokens: int) -> list[list[int]]:
        most, block = self._most_blocks(block_tokens), block_tokens * BYTES_PER_TOKEN
        seed = _seed(request)
        prompts = prompt_bytes(request.body, most * block)
        return [block_hashes(prompt, block, most, seed) for prompt in prompts]

    def _most_blocks(self, block_tokens: int) -> int:
        if self.parameters.max_prefix_tokens_to_match:
            return self.parameters.max_prefix_tokens_to_match // block_tokens
        return self.parameters.max_prefix_blocks_to_match or _ALL

    def _changed(self, model: str, endpoints: Sequence[Endpoint]) -> None:
        """An engine that is gone comes back empty, if it comes back."""
        self._fleet[model] = endpoints
        self.sent.keep({each.name for fleet in self._fleet.values() for each in fleet})


def _seed(request: LLMRequest) -> int:
    body = request.body
    salt = (body.cache_salt or "").encode("utf-8", "surrogatepass")
    parts = (request.target_model.encode("utf-8", "surrogatepass"), salt, setting_bytes(body))
    seed = 0
    for part in parts:
        seed = xxh3_64_intdigest(part, seed)
    return seed


@dataclass(slots=True)
class _SentBlocksListener(RequestListener):
    producer: ApproxPrefixCache
    choice: SchedulingResult
    prompts: list[list[int]]

    def on_prefill(self, target: Target, now: float) -> None:
        self.on_attempt(target, now)

    def on_attempt(self, target: Target, now: float) -> Headers:
        for used in (target, *self.choice.others.values()):
            for hashes in self.prompts:
                self.producer.sent.add(used.endpoint.name, hashes)
        return ()


def _build(parameters: ApproxPrefixCacheParameters, building: Building) -> ApproxPrefixCache:
    tokens = parameters.max_prefix_tokens_to_match
    block = parameters.block_size or parameters.block_size_tokens
    if 0 < tokens < block:
        raise ConfigError(
            f"maxPrefixTokensToMatch: {tokens}, less than a block of {block}: nothing would match"
        )
    sent = SentBlocks(parameters.lru_capacity_per_server)
    source = ApproximatePrefixSource(building.name or APPROXIMATE)
    return ApproxPrefixCache(source, parameters, sent)


TYPE = PluginType(
    APPROXIMATE,
    "finds the blocks of a prompt that were sent to an endpoint before, by hashes of the request",
    _build,
    ApproxPrefixCacheParameters,
)
