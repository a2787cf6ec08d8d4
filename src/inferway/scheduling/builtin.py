"""Every plugin type of ours. docs/plugins.md has them, too; a test compares."""

from __future__ import annotations

from collections.abc import Mapping

from inferway.scheduling import admitters, label_filters, pickers, sessions
from inferway.scheduling.expected_ttft import plugin as expected_ttft
from inferway.scheduling.handlers import deciders, disagg, header_profile
from inferway.scheduling.producers import approx_prefix_cache, inflight_load
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
    *label_filters.TYPES,
    sessions.FILTER,
    # scorers
    *load.TYPES,
    prefix_cache.TYPE,
    prefix_match.TYPE,
    affinity.LORA,
    sessions.SCORER,
    affinity.HEADER_LABEL,
    no_hit_lru.TYPE,
    context_length_aware.TYPE,
    latency.TYPE,
    expected_ttft.TYPE,
    *pickers.TYPES,
    # profile handlers, and what they ask
    header_profile.SINGLE,
    disagg.TYPE,
    disagg.PD_TYPE,
    header_profile.BY_HEADER,
    deciders.PREFIX_BASED,
    deciders.ALWAYS,
    deciders.MULTIMODAL,
    # producers
    approx_prefix_cache.TYPE,
    inflight_load.TYPE,
    *admitters.TYPES,
)

BUILTIN: Mapping[str, PluginType] = {kind.name: kind for kind in _TYPES}
