"""llm-d's plugin types: the entry point `llmd`. docs/plugins.md has them, too; a test compares."""

from __future__ import annotations

from inferway_llmd.scheduling import concurrency, endpoint_attribute, topology
from inferway_llmd.scheduling.filters import (
    label,
    prefix_cache_affinity,
    slo_headroom_tier,
    utilization,
)
from inferway_llmd.scheduling.handlers import deciders, disagg, header_profile
from inferway_llmd.scheduling.producers import (
    approx_prefix_cache,
    inflight_load,
    mm_embeddings_cache,
)
from inferway_llmd.scheduling.scorers import (
    affinity,
    context_length_aware,
    latency,
    no_hit_lru,
    prefix_cache,
    token_load,
)

TYPES = (
    # filters
    *label.TYPES,
    prefix_cache_affinity.TYPE,
    slo_headroom_tier.TYPE,
    utilization.TYPE,
    endpoint_attribute.FILTER,
    # scored and filtered by where engines are
    *topology.TYPES,
    # scorers
    token_load.TYPE,
    prefix_cache.TYPE,
    affinity.LORA,
    affinity.HEADER_LABEL,
    no_hit_lru.TYPE,
    context_length_aware.TYPE,
    endpoint_attribute.SCORER,
    mm_embeddings_cache.SCORER,
    latency.TYPE,
    # profile handlers, and what they ask
    header_profile.SINGLE,
    header_profile.DATA_PARALLEL,
    disagg.TYPE,
    header_profile.BY_HEADER,
    deciders.PREFIX_BASED,
    deciders.ALWAYS,
    deciders.MULTIMODAL,
    # producers
    approx_prefix_cache.TYPE,
    inflight_load.TYPE,
    mm_embeddings_cache.TYPE,
    # flow control
    concurrency.TYPE,
)
