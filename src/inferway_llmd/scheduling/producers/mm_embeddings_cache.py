"""The endpoints that were sent images, audio and video: they may still have their embeddings."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta
from msgspec import field as parameter
from xxhash import xxh3_64_intdigest

from inferway.errors import ConfigError
from inferway.model import Candidates, Column, ColumnKey, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import Body
from inferway.scheduling.per_endpoint import FORGET_SECONDS
from inferway.scheduling.plugin import RequestListener
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway_llmd.scheduling.media import media_parts
from inferway_llmd.scheduling.producers.prompt_bytes import as_json

PRODUCER = "mm-embeddings-cache-producer"
ITEM_MIB = 2  # llm-d's figure for an image's embeddings

Size = Annotated[int, Meta(ge=0)]


class MmEmbeddingsCacheParameters(Parameters, frozen=True):
    cache_size_in_mb_per_server: Size = parameter(default=4096, name="cacheSizeInMBPerServer")
    cache_size_in_mb: Size = parameter(default=0, name="cacheSizeInMB")  # the older name


def share_column(producer: str) -> ColumnKey[Column]:
    """Return the column with the share of the request's media that the endpoint may have."""
    return ColumnKey(f"{producer}/share")


@dataclass(slots=True)
class _Items:
    """The media that one endpoint was sent, the last used last."""

    hashes: OrderedDict[int, None] = field(default_factory=OrderedDict)
    used: float = 0.0


@dataclass(slots=True)
class MmEmbeddingsCache:
    """Knows each item by its part of the message, equal ones once, and remembers the `capacity`
    last ones of each endpoint (llm-d-router ebab687, dataproducer/multimodal)."""

    column: ColumnKey[Column]
    capacity: int
    sent: dict[str, _Items] = field(default_factory=dict)  # by the endpoint's name

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        items = media_hashes(request.body)
        if not items:
            return
        shares = np.zeros(len(candidates.endpoints))
        for row, endpoint in enumerate(candidates.endpoints):
            sent = self.sent.get(endpoint.name)
            if sent is not None:
                shares[row] = len(items & sent.hashes.keys()) / len(items)
        candidates.add(self.column, shares)

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener | None:
        if candidates.get(self.column) is None:
            return None
        return _MediaListener(self, media_hashes(request.body), choice)

    def add(self, endpoint: str, items: frozenset[int], now: float) -> None:
        """Note that a request with these items is sent there. What nobody was sent to for long is
        forgotten."""
        sent = self.sent.get(endpoint)
        if sent is None:
            old = [name for name, each in self.sent.items() if now - each.used > FORGET_SECONDS]
            for name in old:
                del self.sent[name]
            sent = self.sent[endpoint] = _Items()
        sent.used = now
        for item in items:
            sent.hashes[item] = None
            sent.hashes.move_to_end(item)
        while len(sent.hashes) > self.capacity:
            sent.hashes.popitem(last=False)


@dataclass(slots=True)
class _MediaListener(RequestListener):
    producer: MmEmbeddingsCache
    items: frozenset[int]
    choice: SchedulingResult

    def on_attempt(self, target: Target, now: float) -> Headers:
        for used in (target, *self.choice.others.values()):
            self.producer.add(used.endpoint.name, self.items, now)
        return ()


def media_hashes(body: Body) -> frozenset[int]:
    """Return a hash for each image, audio or video of the request."""
    return frozenset([xxh3_64_intdigest(as_json(part)) for part in media_parts(body)])


class MmScorerParameters(Parameters, frozen=True):
    producer_name: str = ""


@dataclass(frozen=True, slots=True)
class MmEmbeddingsCacheScorer:
    """Rates the share of the request's media that the endpoint may have embeddings of; 0 for all
    without media."""

    column: ColumnKey[Column]

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        shares = candidates.get(self.column)
        return np.zeros(len(candidates.endpoints)) if shares is None else shares.copy()


def _producer(parameters: MmEmbeddingsCacheParameters, building: Building) -> MmEmbeddingsCache:
    size = parameters.cache_size_in_mb or parameters.cache_size_in_mb_per_server or 4096
    return MmEmbeddingsCache(share_column(building.name or PRODUCER), max(1, size // ITEM_MIB))


def _scorer(parameters: MmScorerParameters, building: Building) -> MmEmbeddingsCacheScorer:
    name = parameters.producer_name or building.sole_plugin_of(PRODUCER)
    if building.type_of(name) != PRODUCER:
        raise ConfigError(
            f"producerName: {name!r} is no plugin that remembers media; expected one of type "
            + PRODUCER
        )
    return MmEmbeddingsCacheScorer(share_column(name))


def _needs(parameters: MmScorerParameters) -> Sequence[str]:
    return (parameters.producer_name or PRODUCER,)


TYPE = PluginType(
    PRODUCER,
    "remembers which endpoint was sent which images, audio and video: one item for each 2 MB of "
    "cacheSizeInMBPerServer",
    _producer,
    MmEmbeddingsCacheParameters,
)
SCORER = PluginType(
    "mm-embeddings-cache-scorer",
    "scores the share of the request's images, audio and video that the endpoint was sent before",
    _scorer,
    MmScorerParameters,
    needs=_needs,
)
