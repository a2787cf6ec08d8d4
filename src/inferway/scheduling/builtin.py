"""Every plugin type of ours. docs/plugins.md has them, too; a test compares."""

from __future__ import annotations

from collections.abc import Mapping

from inferway.scheduling import (
    admitters,
    endpoint_attribute,
    pickers,
    session_admission,
    sessions,
    topology,
)
from inferway.scheduling.expected_ttft import plugin as expected_ttft
from inferway.scheduling.filters import (
    label,
    prefix_cache_affinity,
    slo_headroom_tier,
    utilization,
)
from inferway.scheduling.flow_control import concurrency, policies, usage_limits
from inferway.scheduling.handlers import deciders, disagg, header_profile
from inferway.scheduling.producers import (
    approx_prefix_cache,
    inflight_load,
    mm_embeddings_cache,
    session_id,
)
from inferway.scheduling.registry import PluginType
from inferway.scheduling.scorers import (
    affinity,
    context_length_aware,
    latency,
    load,
    no_hit_lru,
    prefix_cache,
    prefix_match,
)

_TYPES = (
    # filters
    *label.TYPES,
    sessions.FILTER,
    prefix_cache_affinity.TYPE,
    slo_headroom_tier.TYPE,
    utilization.TYPE,
    endpoint_attribute.FILTER,
    # scored and filtered by where engines are
    *topology.TYPES,
    # scorers
    *load.TYPES,
    prefix_cache.TYPE,
    prefix_match.TYPE,
    affinity.LORA,
    sessions.SCORER,
    affinity.HEADER_LABEL,
    no_hit_lru.TYPE,
    context_length_aware.TYPE,
    endpoint_attribute.SCORER,
    mm_embeddings_cache.SCORER,
    latency.TYPE,
    expected_ttft.TYPE,
    *pickers.TYPES,
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
    *session_id.TYPES,
    *admitters.TYPES,
    session_admission.TYPE,
    # flow control
    concurrency.TYPE,
    *policies.TYPES,
    *usage_limits.TYPES,
)

BUILTIN: Mapping[str, PluginType] = {kind.name: kind for kind in _TYPES}
