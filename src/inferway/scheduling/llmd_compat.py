"""What llm-d has and we have not as a plugin type: what is always there here, or is not built.
docs/plugins.md has both; a test compares.

A configuration with types of the first kind moves over, and is told what they are. Their parameters
say how llm-d is to do it; ours is said elsewhere. So nothing of them is in force, and notes say so
one by one. A type of the second kind is refused with what it does.
"""

from __future__ import annotations

from collections.abc import Mapping

_PROMPTS = "prompts are rendered and tokenized in this process, exactly as the engines do it"
_EVENTS = "the gateway follows the KV events of every engine, and the index knows its endpoints"
_PREFILL = "disagg-profile-handler itself tells the engine where its prompt is computed"
_LOAD = "the gateway reads /metrics of every engine"

PROVIDED: Mapping[str, str] = {
    "core-metrics-extractor": _LOAD,
    "disagg-headers-handler": _PREFILL,
    "endpoint-notification-source": _EVENTS,
    "metrics-data-source": _LOAD,
    "openai-parser": "the gateway parses OpenAI's request bodies",
    "precise-prefix-cache-producer": _EVENTS,
    "prefill-header-handler": _PREFILL,
    "token-producer": _PROMPTS,
    "tokenizer": _PROMPTS,
}

# Feature gates of llm-d's that change nothing here, and why.
GATES: Mapping[str, str] = {
    "dataLayer": _LOAD,
    "enableLegacyMetrics": "metrics have names of ours",
    "haPopulateNonLeaderDatastore": "every gateway knows all engines; none leads",
    "prepareDataPlugins": "producers always run before scorers",
}
GATES_ELSEWHERE: Mapping[str, str] = {
    "flowControl": "queueing of requests in front of full engines",
}

_FLOW_CONTROL = "queues requests in front of full engines (flow control)"
_MULTICLUSTER = "supports several clusters behind one picker"
_TOPOLOGY = "prefers endpoints by zone, rack and host"
_DCGM = "reads the GPUs' metrics from DCGM"
_TESTS = "is for llm-d's own conformance tests"
_ROLLOUT = "follows rollouts of disaggregated sets"
_EMBEDDINGS = "knows which engine holds the embeddings of an image"
_MODELS = "reads the endpoints' /v1/models; here the gateway always does"
_REPLICAS = "shares load among replicas of the picker; here each gateway counts its own requests"

# llm-d-inference-scheduler 520af47 and llm-d-router ebab687.
ELSEWHERE: Mapping[str, str] = {
    "agent-identity": "reads headers that name the agent of a request",
    "anthropic-parser": "parses Anthropic's request bodies",
    "burst-prefix-cache-producer": "keeps equal prompts of one burst together; here the index "
    "counts a prompt on its way as held",
    "concurrency-detector": "measures saturation by requests or tokens in flight",
    "cross-replica-publisher": _REPLICAS,
    "data-parallel-profile-handler": "reads a header that names a data-parallel rank; here each "
    "rank of an engine is an endpoint",
    "dcgm-data-source": _DCGM,
    "dcgm-extractor": _DCGM,
    "destination-endpoint-served-verifier": _TESTS,
    "disaggregatedset-rollout-pod-extractor": _ROLLOUT,
    "disaggregatedset-rollout-screener": _ROLLOUT,
    "edf-ordering-policy": _FLOW_CONTROL,
    "endpoint-attribute-filter": "filters by any scraped metric",
    "endpoint-attribute-scorer": "scores by any scraped metric",
    "fcfs-ordering-policy": _FLOW_CONTROL,
    "file-discovery": "reads endpoints from a file; here `engines` or `discovery.file`",
    "global-strict-fairness-policy": _FLOW_CONTROL,
    "header-based-testing-filter": _TESTS,
    "k8s-notification-source": "reads events of Kubernetes objects",
    "latency-slo-admitter": "refuses sheddable requests if no endpoint is expected to be in time",
    "local-syncer": _REPLICAS,
    "mm-embeddings-cache-producer": _EMBEDDINGS,
    "mm-embeddings-cache-scorer": _EMBEDDINGS,
    "models-data-extractor": _MODELS,
    "models-data-source": _MODELS,
    "multicluster-approx-prefix-cache-producer": _MULTICLUSTER,
    "multicluster-file-discovery": _MULTICLUSTER,
    "multicluster-kv-cache-utilization-scorer": _MULTICLUSTER,
    "multicluster-metrics-data-source": _MULTICLUSTER,
    "multicluster-metrics-extractor": _MULTICLUSTER,
    "multicluster-prefix-cache-scorer": _MULTICLUSTER,
    "multicluster-queue-scorer": _MULTICLUSTER,
    "multicluster-session-affinity-filter": _MULTICLUSTER,
    "p2p-source-producer": "fetches KV blocks from another engine",
    "passthrough-parser": "passes bodies on without parsing them",
    "predicted-latency-producer": "gets latencies from a sidecar; here expected-ttft learns them",
    "prefix-cache-affinity-filter": "keeps only the endpoints that hold most of the prompt",
    "priority-holdback-policy": _FLOW_CONTROL,
    "priority-then-time-eviction-order-policy": _FLOW_CONTROL,
    "program-aware-fairness": _FLOW_CONTROL,
    "request-attribute-reporter": "computes values from answers by CEL expressions",
    "round-robin-fairness-policy": _FLOW_CONTROL,
    "session-id-producer": "provides a session's name; here session-affinity-scorer reads it",
    "sglanghttp-parser": "parses SGLang's own request bodies",
    "sheddable-eviction-filter": _FLOW_CONTROL,
    "slo-deadline-ordering-policy": _FLOW_CONTROL,
    "slo-headroom-tier-filter": "groups endpoints by latency headroom; here latency-scorer does it",
    "soft-reflective-ceiling-policy": _FLOW_CONTROL,
    "static-usage-limit-policy": _FLOW_CONTROL,
    "topology-affinity-filter": _TOPOLOGY,
    "topology-affinity-scorer": _TOPOLOGY,
    "topology-extractor": _TOPOLOGY,
    "utilization-filter": "keeps endpoints below own limits; here utilization-detector filters",
    "vertexai-parser": "parses Vertex AI's request bodies",
    "vllmgrpc-parser": "parses vLLM's gRPC requests",
    "vllmhttp-parser": "parses the bodies of vLLM's /inference/v1/generate",
}
