"""Every plugin type of ours, and llm-d's others. docs/plugins.md has both; a test compares."""

from __future__ import annotations

from collections.abc import Mapping

from inferway.scheduling.admitters import probabilistic, utilization
from inferway.scheduling.expected_ttft import plugin as expected_ttft
from inferway.scheduling.filters import by_label, label_selector, roles
from inferway.scheduling.filters import session_affinity as session_filter
from inferway.scheduling.handlers import deciders, disagg, header_profile, single
from inferway.scheduling.pickers import max_score, random, weighted_random
from inferway.scheduling.producers import approx_prefix_cache, inflight_load
from inferway.scheduling.registry import PluginType
from inferway.scheduling.scorers import (
    active_request,
    context_length_aware,
    header_label_affinity,
    kv_cache_utilization,
    latency,
    load_aware,
    lora_affinity,
    no_hit_lru,
    precise_prefix_cache,
    prefix_cache,
    queue,
    recent_work,
    relative_load,
    running_requests,
    session_affinity,
    token_load,
)

_TYPES = (
    # filters
    label_selector.TYPE,
    label_selector.OLD_TYPE,
    by_label.TYPE,
    roles.DECODE,
    roles.PREFILL,
    roles.ENCODE,
    session_filter.TYPE,
    # scorers
    queue.TYPE,
    running_requests.TYPE,
    kv_cache_utilization.TYPE,
    prefix_cache.TYPE,
    precise_prefix_cache.TYPE,
    load_aware.TYPE,
    active_request.TYPE,
    token_load.TYPE,
    lora_affinity.TYPE,
    session_affinity.TYPE,
    header_label_affinity.TYPE,
    no_hit_lru.TYPE,
    context_length_aware.TYPE,
    latency.TYPE,
    expected_ttft.TYPE,
    relative_load.TYPE,
    recent_work.TYPE,
    # pickers
    max_score.TYPE,
    random.TYPE,
    weighted_random.TYPE,
    # profile handlers, and what they ask
    single.TYPE,
    disagg.TYPE,
    disagg.PD_TYPE,
    header_profile.TYPE,
    deciders.PREFIX_BASED,
    deciders.ALWAYS,
    deciders.MULTIMODAL,
    # producers
    approx_prefix_cache.TYPE,
    inflight_load.TYPE,
    # admitters
    utilization.TYPE,
    probabilistic.TYPE,
)

BUILTIN: Mapping[str, PluginType] = {kind.name: kind for kind in _TYPES}

_FLOW_CONTROL = "queueing in front of full engines (flow control)"
_MULTICLUSTER = "several clusters behind one picker"
_TOPOLOGY = "zones, racks and hosts of endpoints"
_DCGM = "figures of the GPUs, from DCGM"
_TESTS = "for llm-d's own conformance tests"
_ROLLOUT = "rollouts of disaggregated sets"
_EMBEDDINGS = "which engine holds which image's embeddings"
_REPLICAS = "load shared among replicas of the picker; here each gateway counts its own"

# llm-d-inference-scheduler 520af47 and llm-d-router ebab687.
ELSEWHERE: Mapping[str, str] = {
    "agent-identity": "headers that say which agent asks",
    "anthropic-parser": "Anthropic's request bodies",
    "burst-prefix-cache-producer": "requests of one burst with equal prompts, kept together; here "
    "a prompt on its way counts as held",
    "concurrency-detector": "saturation by requests or tokens in flight",
    "cross-replica-publisher": _REPLICAS,
    "data-parallel-profile-handler": "a header that names a data-parallel rank; here an engine's "
    "ranks are endpoints of their own",
    "dcgm-data-source": _DCGM,
    "dcgm-extractor": _DCGM,
    "destination-endpoint-served-verifier": _TESTS,
    "disaggregatedset-rollout-pod-extractor": _ROLLOUT,
    "disaggregatedset-rollout-screener": _ROLLOUT,
    "edf-ordering-policy": _FLOW_CONTROL,
    "endpoint-attribute-filter": "any figure that is scraped, by name",
    "endpoint-attribute-scorer": "any figure that is scraped, by name",
    "fcfs-ordering-policy": _FLOW_CONTROL,
    "file-discovery": "endpoints from a file; here `engines` in the YAML file",
    "global-strict-fairness-policy": _FLOW_CONTROL,
    "header-based-testing-filter": _TESTS,
    "k8s-notification-source": "events of Kubernetes objects",
    "latency-slo-admitter": "sheddable requests refused when no endpoint is expected to be in time",
    "local-syncer": _REPLICAS,
    "mm-embeddings-cache-producer": _EMBEDDINGS,
    "mm-embeddings-cache-scorer": _EMBEDDINGS,
    "models-data-extractor": "endpoints' /v1/models as figures; here it is always asked",
    "models-data-source": "endpoints' /v1/models as figures; here it is always asked",
    "multicluster-approx-prefix-cache-producer": _MULTICLUSTER,
    "multicluster-file-discovery": _MULTICLUSTER,
    "multicluster-kv-cache-utilization-scorer": _MULTICLUSTER,
    "multicluster-metrics-data-source": _MULTICLUSTER,
    "multicluster-metrics-extractor": _MULTICLUSTER,
    "multicluster-prefix-cache-scorer": _MULTICLUSTER,
    "multicluster-queue-scorer": _MULTICLUSTER,
    "multicluster-session-affinity-filter": _MULTICLUSTER,
    "p2p-source-producer": "KV blocks fetched from another engine",
    "passthrough-parser": "bodies that are not looked into",
    "predicted-latency-producer": "latencies by a trained sidecar; here expected-ttft learns them",
    "prefix-cache-affinity-filter": "endpoints that hold most of the prompt, and no others",
    "priority-holdback-policy": _FLOW_CONTROL,
    "priority-then-time-eviction-order-policy": _FLOW_CONTROL,
    "program-aware-fairness": _FLOW_CONTROL,
    "request-attribute-reporter": "figures computed from answers by CEL expressions",
    "round-robin-fairness-policy": _FLOW_CONTROL,
    "session-id-producer": "a session's name as a figure; session-affinity-scorer reads the header",
    "sglanghttp-parser": "SGLang's own request bodies",
    "sheddable-eviction-filter": _FLOW_CONTROL,
    "slo-deadline-ordering-policy": _FLOW_CONTROL,
    "slo-headroom-tier-filter": "endpoints by tiers of headroom; latency-scorer rates them",
    "soft-reflective-ceiling-policy": _FLOW_CONTROL,
    "static-usage-limit-policy": _FLOW_CONTROL,
    "topology-affinity-filter": _TOPOLOGY,
    "topology-affinity-scorer": _TOPOLOGY,
    "topology-extractor": _TOPOLOGY,
    "utilization-filter": "endpoints below limits of their own; utilization-detector filters, too",
    "vertexai-parser": "Vertex AI's request bodies",
    "vllmgrpc-parser": "vLLM's gRPC requests",
    "vllmhttp-parser": "vLLM's /inference/v1/generate bodies",
}
