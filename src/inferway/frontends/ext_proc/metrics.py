"""The picker's numbers on /metrics, under our names and under the reference's, whose dashboards and
alerts may stay: those of the Gateway API Inference Extension (`inference_…`), and those that llm-d
has given the same figures since (`llm_d_epp_…`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, pstdev

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from inferway import __version__
from inferway.fleet.engine import Engine
from inferway.fleet.load import Load
from inferway.frontends.ext_proc.counts import ModelCounts, PickerCounts
from inferway.frontends.http.families import Family, Histogram, counter, gauge

_EXTENSION, _OBJECTIVE, _POOL = "inference_extension_", "inference_objective_", "inference_pool_"
_LLM_D = "llm_d_epp_"
_MODELS = ["model_name", "target_model_name"]
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
    """`pool`: what the reference's pool metrics are labelled with."""
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
        info = GaugeMetricFamily(
            f"{prefix}info",
            "Always 1; the labels say what is running.",
            labels=["commit", "build_ref"],
        )
        info.add_metric(["", f"inferway {__version__}"], 1)
        yield info


def _of_models(counts: PickerCounts) -> Iterator[Family]:
    models = counts.models.items()
    for prefix in (_OBJECTIVE, _LLM_D):
        requests = CounterMetricFamily(
            f"{prefix}request",
            "Requests with a prompt that the endpoint picker picked an engine for.",
            labels=_MODELS,
        )
        errors = CounterMetricFamily(
            f"{prefix}request_error",
            "Requests that the endpoint picker picked an engine for and that got no complete"
            " answer, by error code.",
            labels=[*_MODELS, "error_code"],
        )
        for names, model in models:
            requests.add_metric(names, model.requests)
            for code, number in model.errors.items():
                errors.add_metric([*names, code], number)
        yield from (requests, errors)
    yield from _running(counts)
    for old, new, text, of in _HISTOGRAMS:
        for name in (f"{_OBJECTIVE}{old}" if old else "", f"{_LLM_D}{new}"):
            if name:
                found = [(names, of(model)) for names, model in models]
                yield _histogram(name, text, _MODELS, found)


def _running(counts: PickerCounts) -> Iterator[Family]:
    by_name: Counter[str] = Counter()
    old = GaugeMetricFamily(f"{_OBJECTIVE}running_requests", _RUNNING, labels=["model_name"])
    new = GaugeMetricFamily(f"{_LLM_D}request_running", _RUNNING, labels=_MODELS)
    for names, model in counts.models.items():
        by_name[names[0]] += model.running
        new.add_metric(names, model.running)
    for name, number in by_name.items():
        old.add_metric([name], number)
    yield from (old, new)


def _of_pool(engines: Sequence[Engine], pool: str) -> Iterator[Family]:
    ready = [engine for engine in engines if engine.healthy]
    for name in (f"{_POOL}ready_pods", f"{_LLM_D}ready_endpoints"):
        yield _pool_gauge(name, "Engines of the pool that answer.", pool, len(ready))
    figures: tuple[tuple[str, str, Callable[[Load], float]], ...] = (
        ("queue_size", "Requests waiting in an engine of the pool", lambda load: load.waiting),
        ("running_requests", "Requests that an engine of the pool runs", lambda load: load.running),
        (
            "kv_cache_utilization",
            "Share of its KV blocks that an engine of the pool uses",
            lambda load: load.kv_usage,
        ),
    )
    for name, text, of in figures:
        values = [of(engine.load) for engine in ready] or [0.0]
        bounds = ", from 0 to 1" if name == "kv_cache_utilization" else ""
        for prefix in (_POOL, _LLM_D):
            family = f"{prefix}average_{name}"
            yield _pool_gauge(family, f"{text}, on average{bounds}.", pool, fmean(values))
        spread = f"{text}: the standard deviation."
        yield _pool_gauge(f"{_LLM_D}std_dev_{name}", spread, pool, pstdev(values))
    for name, label in (
        (f"{_POOL}per_pod_queue_size", "model_server_pod"),
        (f"{_LLM_D}per_endpoint_queue_size", "model_server_endpoint"),
    ):
        each = GaugeMetricFamily(
            name, "Requests waiting in each engine of the pool.", labels=["name", label]
        )
        for engine in ready:
            each.add_metric([pool, engine.name], engine.load.waiting)
        yield each


def _pool_gauge(name: str, text: str, pool: str, value: float) -> Family:
    family = GaugeMetricFamily(name, text, labels=["name"])
    family.add_metric([pool], value)
    return family


def _of_decisions(counts: PickerCounts) -> Iterator[Family]:
    for prefix in (_EXTENSION, _LLM_D):
        yield _histogram(
            f"{prefix}scheduler_e2e_duration_seconds",
            "Seconds from a complete request to the choice of its engine; parsing, rendering and"
            " tokenizing are included.",
            (),
            [((), counts.decided)],
        )
        yield _histogram(
            f"{prefix}prefix_indexer_hit_ratio",
            "Share of a prompt's blocks that the chosen engine holds.",
            (),
            [((), counts.hits)],
        )
        attempts = CounterMetricFamily(
            f"{prefix}scheduler_attempts",
            "Decisions of the endpoint picker, by status: success, or failure if no engine was"
            " available.",
            labels=["status", "target_model_name", "endpoint_name"],
        )
        for names, number in counts.attempts.items():
            attempts.add_metric(names, number)
        yield attempts


def _of_streams(counts: PickerCounts) -> Iterator[Family]:
    inflight = GaugeMetricFamily(
        f"{_LLM_D}extproc_streams_inflight", "Streams of proxies that are open now."
    )
    inflight.add_metric([], counts.open)
    closed = CounterMetricFamily(
        f"{_LLM_D}extproc_streams",
        "Streams of proxies that have ended, by gRPC's code.",
        labels=["code"],
    )
    for code, number in counts.closed.items():
        closed.add_metric([code], number)
    yield from (inflight, closed)


def _histogram(
    name: str,
    text: str,
    labels: Sequence[str],
    found: Iterable[tuple[Sequence[str], Histogram]],
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, histogram in found:
        family.add_metric(values, histogram.buckets(), histogram.total)
    return family
