"""What /metrics shows of requests by model: how they ended, how long they took, their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from inferway.frontends.http.families import Family, Histogram, counter, histogram
from inferway.frontends.request_counts import ModelRequests, RequestCounts

_HISTOGRAMS: tuple[tuple[str, str, Callable[[ModelRequests], Histogram]], ...] = (
    (
        "time_to_first_token_seconds",
        "Seconds from a complete request to the first tokens of its streamed answer.",
        lambda m: m.first_token,
    ),
    (
        "inter_token_latency_seconds",
        "Seconds between two successive pieces of a streamed answer that carry tokens.",
        lambda m: m.inter_token,
    ),
    (
        "request_time_per_output_token_seconds",
        "Seconds from the first to the last token of a streamed answer, divided by the number of"
        " its tokens after the first.",
        lambda m: m.per_token,
    ),
    (
        "e2e_request_latency_seconds",
        "Seconds from a complete request to the end of its answer.",
        lambda m: m.whole,
    ),
    (
        "request_queue_time_seconds",
        "Seconds that a request waited for its turn in the gateway's own queue; 0 for a request"
        " that did not have to wait.",
        lambda m: m.queued,
    ),
    (
        "request_prompt_tokens",
        "Prompt tokens of a request, by model.",
        lambda m: m.prompt_tokens,
    ),
    (
        "request_generation_tokens",
        "Tokens that the engine generated for a request, by model.",
        lambda m: m.output_tokens,
    ),
)


def request_families(counts: RequestCounts) -> Iterator[Family]:
    """Of all models that were asked for; names that nobody serves are one."""
    counts.flush()
    models = counts.models.values()
    yield counter(
        "requests",
        "Requests that have ended, by model, by the HTTP status of the answer, and by outcome.",
        ["model", "status", "outcome"],
        {
            (model.name, str(status), outcome): number
            for model in models
            for (status, outcome), number in model.endings.items()
        },
    )
    for name, text, of in _HISTOGRAMS:
        found = [((model.name,), of(model)) for model in models]
        yield histogram(f"inferway_{name}", text, ["model"], found)
