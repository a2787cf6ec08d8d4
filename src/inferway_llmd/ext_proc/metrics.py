"""The picker's numbers on /metrics, under our names and under the reference's, whose dashboards and
alerts may stay: those of the Gateway API Inference Extension (`inference_…`), and those that llm-d
has given the same figures since (`llm_d_epp_…`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, pstdev

from inferway import __version__
from inferway.fleet.engine import Engine
from inferway.metrics import Family, Histogram, counter, gauge, histogram
from inferway_llmd.ext_proc.counts import ModelCounts, PickerCounts

_EXTENSION, _OBJECTIVE, _POOL = "inference_extension_", "inference_objective_", "inference_pool_"
_LLM_D = "llm_d_epp_"
_MODELS = ("model_name", "target_model_name")
_RUNNING = "Requests that the endpoint picker picked an engine for and that have not ended."

# The extension's name behind `inference_objective_`, if it has one; llm-d's; meaning; which of a
# model's histograms.
_HISTOGRAMS: tuple[tuple[str, str, str, Callable[[ModelCounts], Histogram]], ...] = (
    (
        *("request_duration_seconds", "request_duration_seconds"),
        "Seconds from the pick of an engine to the end of its answer.",
        lambda c: c.seconds,
    ),
    (
        *("request_ttft_seconds", "request_ttft_seconds"),
        "Seconds from the pick of an engine to the first piece of its answer.",
        lambda c: c.first_seconds,
    ),
    (
        *("normalized_time_per_output_token_seconds", "request_ntpot_seconds"),
        "Seconds from the pick of an engine to the end of its answer, divided by the tokens of the"
        " answer.",
        lambda c: c.seconds_per_token,
    ),
    (
        *("", "request_streaming_tpot_seconds"),
        "Seconds from the first piece of a streamed answer to its end, divided by the number of"
        " its tokens after the first.",
        lambda c: c.seconds_per_later_token,
    ),
    (
        *("request_sizes", "request_size_bytes"),
        "Bytes of the bodies of requests.",
        lambda c: c.request_bytes,
    ),
    (
        *("response_sizes", "response_size_bytes"),
        "Bytes of the bodies of answers.",
        lambda c: c.response_bytes,
    ),
    (
        *("input_tokens", "request_input_tokens"),
        "Prompt tokens of a request, as its engine says.",
        lambda c: c.input_tokens,
    ),
    (
        *("output_tokens", "request_output_tokens"),
        "Tokens of an answer, as its engine says.",
        lambda c: c.output_tokens,
    ),
    (
        *("prompt_cached_tokens", "request_cached_tokens"),
        "Prompt tokens of a request that came from the engine's cache, as the engine says.",
        lambda c: c.cached_tokens,
    ),
)


def picker_families(counts: PickerCounts, engines: Sequence[Engine], pool: str) -> Iterator[Family]:
    """Yield the picker's metric families, the reference's pool metrics labelled with `pool`."""
    yield counter(
        "picker_streams",
        "Requests that a proxy asked the endpoint picker about.",
        value=counts.streams,
    )
    yield gauge(
        "picker_streams_open",
        "Requests of a proxy that the endpoint picker is busy with now.",
        value=counts.open,
    )
    yield counter(
        "picker_messages",
        "Messages that the endpoint picker got from proxies.",
        value=counts.messages,
    )
    yield counter(
        "picker_unread",
        "Requests without a prompt that the endpoint picker sent by load.",
        value=counts.unread,
    )
    yield counter(
        "picker_served_elsewhere",
        "Answers that came from another engine than the one that the endpoint picker named first.",
        value=counts.elsewhere,
    )
    yield counter(
        "picker_refusals",
        "Requests that the endpoint picker answered itself, by HTTP status.",
        ["status"],
        {(str(status),): n for status, n in counts.refusals.items()},
    )
    yield from _of_models(counts)
    yield from _of_pool(engines, pool)
    yield from _of_decisions(counts)
    yield from _of_streams(counts)
    for prefix in (_EXTENSION, _LLM_D):
        yield gauge(
            "info",
            "Always 1; the labels say what is running.",
            ["commit", "build_ref"],
            {("", f"inferway {__version__}"): 1},
            prefix=prefix,
        )


def _of_models(counts: PickerCounts) -> Iterator[Family]:
    models = counts.models.items()
    for prefix in (_OBJECTIVE, _LLM_D):
        yield counter(
            "request",
            "Requests with a prompt that the endpoint picker picked an engine for.",
            _MODELS,
            {names: model.requests for names, model in models},
            prefix=prefix,
        )
        yield counter(
            "request_error",
            "Requests that the endpoint picker picked an engine for and that got no complete"
            " answer, by error code.",
            [*_MODELS, "error_code"],
            {(*names, code): n for names, model in models for code, n in model.errors.items()},
            prefix=prefix,
        )
    by_name: Counter[tuple[str, ...]] = Counter()
    for names, model in models:
        by_name[names[:1]] += model.running
    running = {names: model.running for names, model in models}
    yield gauge("running_requests", _RUNNING, _MODELS[:1], by_name, prefix=_OBJECTIVE)
    yield gauge("request_running", _RUNNING, _MODELS, running, prefix=_LLM_D)
    for old, new, text, of in _HISTOGRAMS:
        for name in (f"{_OBJECTIVE}{old}" if old else "", f"{_LLM_D}{new}"):
            if name:
                yield histogram(
                    name, text, _MODELS, [(names, of(model)) for names, model in models]
                )


def _of_pool(engines: Sequence[Engine], pool: str) -> Iterator[Family]:
    ready = [engine for engine in engines if engine.healthy]

    def of_pool(prefix: str, name: str, text: str, value: float) -> Family:
        return gauge(name, text, ["name"], {(pool,): value}, prefix=prefix)

    for prefix, name in ((_POOL, "ready_pods"), (_LLM_D, "ready_endpoints")):
        yield of_pool(prefix, name, "Engines of the pool that answer.", len(ready))
    for name, text, column in _POOL_FIGURES:
        values = [engine.load[column] for engine in ready] or [0.0]
        bounds = ", from 0 to 1" if name == "kv_cache_utilization" else ""
        for prefix in (_POOL, _LLM_D):
            mean = f"{text}, on average{bounds}."
            yield of_pool(prefix, f"average_{name}", mean, fmean(values))
        yield of_pool(_LLM_D, f"std_dev_{name}", f"{text}: the standard deviation.", pstdev(values))
    for prefix, name, label in (
        (_POOL, "per_pod_queue_size", "model_server_pod"),
        (_LLM_D, "per_endpoint_queue_size", "model_server_endpoint"),
    ):
        yield gauge(
            name,
            "Requests waiting in each engine of the pool.",
            ["name", label],
            {(pool, engine.name): engine.load["waiting"] for engine in ready},
            prefix=prefix,
        )


_POOL_FIGURES = (
    ("queue_size", "Requests waiting in an engine of the pool", "waiting"),
    ("running_requests", "Requests that an engine of the pool runs", "running"),
    (
        "kv_cache_utilization",
        "Share of its KV blocks that an engine of the pool uses",
        "kv_usage",
    ),
)


def _of_decisions(counts: PickerCounts) -> Iterator[Family]:
    for prefix in (_EXTENSION, _LLM_D):
        yield histogram(
            f"{prefix}scheduler_e2e_duration_seconds",
            "Seconds from a complete request to the choice of its engine; parsing, rendering and"
            " tokenizing are included.",
            (),
            [((), counts.decided)],
        )
        yield histogram(
            f"{prefix}prefix_indexer_hit_ratio",
            "Share of a prompt's blocks that the chosen engine holds.",
            (),
            [((), counts.hits)],
        )
        yield counter(
            "scheduler_attempts",
            "Decisions of the endpoint picker, by status: success, or failure if no engine was"
            " available.",
            ["status", "target_model_name", "endpoint_name"],
            counts.attempts,
            prefix=prefix,
        )


def _of_streams(counts: PickerCounts) -> Iterator[Family]:
    yield gauge(
        "extproc_streams_inflight",
        "Streams of proxies that are open now.",
        value=counts.open,
        prefix=_LLM_D,
    )
    yield counter(
        "extproc_streams",
        "Streams of proxies that have ended, by gRPC's code.",
        ["code"],
        {(code,): n for code, n in counts.closed.items()},
        prefix=_LLM_D,
    )
