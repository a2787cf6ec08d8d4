"""Types of llm-d's that name what is always there here: a configuration that has them moves over,
and is told what they are.

Their parameters say how llm-d is to do it; ours is said elsewhere. So nothing of them is in force,
and `Note`s say so one by one.
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
