"""Plugin types that llm-d has and we have not: their work is always done here, or is not built.
docs/plugins.md has both; a test compares.

A configuration with types of the first kind moves over, and is told what they are. Their parameters
say how llm-d is to do it; ours is said elsewhere. So nothing of them is in force, and notes say so
one by one. A type of the second kind is refused with what it does, or with its name of today.
"""

from __future__ import annotations

from collections.abc import Mapping

_PROMPTS = "prompts are rendered and tokenized in this process, exactly as the engines do it"
_EVENTS = "the gateway follows the KV events of every engine, and the index knows its endpoints"
_PREFILL = "disagg-profile-handler itself tells the engine where its prompt is computed"
_LOAD = "the gateway reads /metrics of every engine"
_BODIES = (
    "the gateway reads the bodies of the paths it knows, and passes on others (allow_paths) unread"
)
_GPUS = "the GPUs' metrics are not read: endpoints have none of these attributes"
_MODELS = "the gateway asks every engine for its models"
_REPLICAS = "gateways tell each other what they have sent and learned, where `peers` connects them"

PROVIDED: Mapping[str, str] = {
    "anthropic-parser": _BODIES,
    "burst-prefix-cache-producer": "the index counts a prompt on its way as held, so that equal "
    "prompts of one burst stay together, and nobody waits for the others",
    "core-metrics-extractor": _LOAD,
    "cross-replica-publisher": _REPLICAS,
    "dcgm-data-source": _GPUS,
    "dcgm-extractor": _GPUS,
    "disagg-headers-handler": _PREFILL,
    "endpoint-notification-source": _EVENTS,
    "local-syncer": _REPLICAS,
    "metrics-data-source": _LOAD,
    "models-data-extractor": _MODELS,
    "models-data-source": _MODELS,
    "openai-parser": _BODIES,
    "passthrough-parser": _BODIES,
    "precise-prefix-cache-producer": _EVENTS,
    "predicted-latency-producer": "expected-ttft learns latencies from the answers, and is added "
    "where they are read",
    "prefill-header-handler": _PREFILL,
    "token-producer": _PROMPTS,
    "tokenizer": _PROMPTS,
    "vllmhttp-parser": _BODIES,
}

# Feature gates of llm-d's that change nothing here, and why.
GATES: Mapping[str, str] = {
    "dataLayer": _LOAD,
    "enableLegacyMetrics": "metrics have names of ours",
    "haPopulateNonLeaderDatastore": "every gateway knows all engines; none leads",
    "prepareDataPlugins": "producers always run before scorers",
}
FLOW_CONTROL = "flowControl"  # the gate of flow_control

_EVICTION = "ends requests that run, for others of a higher priority (flowControl.enableEviction)"
_MULTICLUSTER = "supports several clusters behind one picker"
_TESTS = "is for llm-d's own tests"
_ROLLOUT = "follows rollouts of disaggregated sets"

# llm-d-inference-scheduler 520af47 and llm-d-router ebab687.
ELSEWHERE: Mapping[str, str] = {
    "destination-endpoint-served-verifier": _TESTS,
    "disaggregatedset-rollout-pod-extractor": _ROLLOUT,
    "disaggregatedset-rollout-screener": _ROLLOUT,
    "file-discovery": "reads endpoints from a file; here `engines` or `discovery.file`",
    "header-based-testing-filter": _TESTS,
    "k8s-notification-source": "reads events of Kubernetes objects",
    "mock-metrics-source": _TESTS,
    "multicluster-approx-prefix-cache-producer": _MULTICLUSTER,
    "multicluster-file-discovery": _MULTICLUSTER,
    "multicluster-kv-cache-utilization-scorer": _MULTICLUSTER,
    "multicluster-metrics-data-source": _MULTICLUSTER,
    "multicluster-metrics-extractor": _MULTICLUSTER,
    "multicluster-prefix-cache-scorer": _MULTICLUSTER,
    "multicluster-queue-scorer": _MULTICLUSTER,
    "multicluster-session-affinity-filter": _MULTICLUSTER,
    "p2p-source-producer": "fetches KV blocks from another engine",
    "pd-profile-handler": "is disagg-profile-handler today, with profiles and deciders",
    "priority-then-time-eviction-order-policy": _EVICTION,
    "request-attribute-reporter": "computes values from answers by CEL expressions",
    "sglanghttp-parser": "parses SGLang's own request bodies",
    "sheddable-eviction-filter": _EVICTION,
    "vertexai-parser": "parses Vertex AI's request bodies",
    "vllmgrpc-parser": "parses vLLM's gRPC requests",
}

# A type -> the one that llm-d has given some of its parameters to, and where they belong since.
MOVED: Mapping[str, str] = {"prefix-cache-scorer": "approx-prefix-cache-producer"}
