"""Scorers that prefer the endpoint that already holds the prompt, as the engines' own events say,
and the one with less to do: these read a column of load each."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from msgspec import Meta, field

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.prefix_source import TRUST
from inferway.scheduling.registry import Parameters, PluginType

Count = Annotated[int, Meta(ge=0)]
Scale = Annotated[float, Meta(gt=0)]


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


class Queue(Parameters, frozen=True):
    """Rates 1 for the shortest queue, 0 for the longest, linear in between; 1 for all when they are
    equal."""

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        return between_extremes(candidates.waiting)


class RunningRequests(Parameters, frozen=True):
    """Rates 1 for the smallest batch, 0 for the largest, linear in between; 1 for all when they are
    equal."""

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        return between_extremes(candidates.running)


class KVCacheUtilization(Parameters, frozen=True):
    """Rates the share of the KV cache that is not in use."""

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        free = 1.0 - candidates.kv_usage
        return np.maximum(free, 0.0, out=free)  # engines round


class LoadAware(Parameters, frozen=True):
    """Rates 0.5 * (1 - min(q, T) / T): 0.5 without a queue, 0 for one of T or more."""

    threshold: Annotated[int, Meta(ge=1)] = 128

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        rating = np.minimum(candidates.waiting, self.threshold)
        rating *= -0.5 / self.threshold
        rating += 0.5
        return rating


class ActiveRequest(Parameters, frozen=True):
    """Rates 1 for an endpoint with at most `idle_threshold` of our requests in flight; a busy one
    (most - c) / most * `max_busy_score`, where `most` is what the busiest has."""

    idle_threshold: Count = 0
    max_busy_score: Annotated[float, Meta(ge=0, le=1)] = 1.0
    request_timeout: str = ""  # not in force, nor in llm-d
    in_flight_load_producer_name: str = ""  # not in force: the count is always there

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        requests = candidates.in_flight
        most = requests.item(requests.argmax())
        if most <= self.idle_threshold:
            return np.ones(len(requests))
        rating = most - requests
        rating *= self.max_busy_score / most
        rating[requests <= self.idle_threshold] = 1.0
        return rating


class RelativeLoad(Parameters, frozen=True):
    """Rates requests in the engine: ours in flight and, from its metrics, those of others.
    `min_scale` requests more or less on an idle fleet do not outweigh a cached prompt."""

    min_scale: Scale = 4.0

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        return below_mean(candidates.in_flight + candidates.others, self.min_scale)


class RecentWork(Parameters, frozen=True):
    """Rates recently sent uncached tokens; `min_scale` tokens of imbalance hardly count.

    Load alone says nothing on a fleet that is idle between two requests: the first engine that
    holds a short beginning common to all prompts (a default system prompt) would then draw every
    unrelated session, and fill one cache while the others stay empty.
    """

    min_scale: Scale = 512.0

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        return below_mean(candidates.recent_prefill_tokens, self.min_scale)


def between_extremes(column: Column) -> Column:
    """Return (most - x) / (most - least); 1 for all when they are equal."""
    # argmax and item() take a quarter of the time that max() does.
    most = column.item(column.argmax())
    span = most - column.item(column.argmin())
    if span == 0:
        return np.ones(len(column))
    rating = most - column
    rating /= span
    return rating


def below_mean(column: Column, min_scale: float) -> Column:
    """Return 0.5 at the mean, 1 for a scale below it or more, 0 for a scale above or more.

    The scale is the mean itself, and at least `min_scale`, so that small differences on a quiet
    fleet do not count. The form is production-stack's `loadaware`: (x - mean) / max(1, mean).
    """
    # As few and as plain array operations as it can be: on short columns their number is the
    # cost, and mean() and clip() take three times as long.
    mean = float(np.add.reduce(column)) / len(column)
    slope = 0.5 / max(min_scale, mean)
    rating: Column = column * -slope
    rating += 0.5 + mean * slope
    np.maximum(rating, 0.0, out=rating)
    return np.minimum(rating, 1.0, out=rating)


TYPES = (
    PluginType(
        "queue-scorer",
        "scores (max - q) / (max - min) of the q requests waiting in the engine; 1 if all are "
        "equal",
        parameters=Queue,
    ),
    PluginType(
        "running-requests-size-scorer",
        "scores (max - r) / (max - min) of the r requests running in the engine; 1 if all are "
        "equal",
        parameters=RunningRequests,
    ),
    PluginType(
        "kv-cache-utilization-scorer",
        "scores 1 - the used share of the engine's KV blocks",
        parameters=KVCacheUtilization,
    ),
    PluginType(
        "load-aware-scorer",
        "scores 0.5 * (1 - min(q, T) / T) of the q requests waiting in the engine, with T = "
        "threshold",
        parameters=LoadAware,
    ),
    PluginType(
        "active-request-scorer",
        "scores 1 for an endpoint with at most idleThreshold of the gateway's requests in flight, "
        "else (max - c) / max * maxBusyScore for c requests",
        parameters=ActiveRequest,
        not_in_force=frozenset({"requestTimeout", "inFlightLoadProducerName"}),
    ),
    PluginType(
        "relative-load-scorer",
        "scores 0.5 for the mean number of requests in the engines; 1 for less and 0 for more by "
        "that mean, or by minScale if that is larger",
        parameters=RelativeLoad,
    ),
    PluginType(
        "recent-work-scorer",
        "scores 0.5 for the mean number of uncached tokens sent lately; 1 for less and 0 for more "
        "by that mean, or by minScale if that is larger",
        parameters=RecentWork,
    ),
    PluginType(
        "precise-prefix-cache-scorer",
        "scores matched / total blocks, by the engines' KV events",
        parameters=PrefixMatch,
        not_in_force=frozenset(PrefixMatch.__struct_encode_fields__),
    ),
)
