"""The picker's numbers on /metrics, under our names and under the reference's (GIE, llm-d), whose
dashboards and alerts may stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from inferway import __version__
from inferway.fleet.engine import Engine
from inferway.frontends.ext_proc.counts import ModelCounts, PickerCounts
from inferway.frontends.http.families import Family, Histogram, counter, gauge

_OBJECTIVE = "inference_objective_"
_POOL = "inference_pool_"
_MODELS = ["model_name", "target_model_name"]

# name, meaning, which of a model's histograms
_HISTOGRAMS: tuple[tuple[str, str, Callable[[ModelCounts], Histogram]], ...] = (
    (
        "request_duration_seconds",
        "From the pick to the answer's end, of answered requests.",
        lambda c: c.seconds,
    ),
    (
        "normalized_time_per_output_token_seconds",
        "The same, by token of the answer.",
        lambda c: c.seconds_per_token,
    ),
    ("request_sizes", "Bytes of requests' bodies.", lambda c: c.request_bytes),
    ("response_sizes", "Bytes of answers' bodies.", lambda c: c.response_bytes),
    ("input_tokens", "Tokens of prompts, as engines say.", lambda c: c.input_tokens),
    ("output_tokens", "Tokens of answers, as engines say.", lambda c: c.output_tokens),
)


def picker_families(counts: PickerCounts, engines: Sequence[Engine], pool: str) -> Iterator[Family]:
    """`pool`: what the reference's pool metrics are labelled with."""
    yield counter("picker_streams", "Requests that a proxy asked about.", value=counts.streams)
    yield gauge("picker_streams_open", "Of them, those under way.", value=counts.open)
    yield counter("picker_messages", "Messages from proxies.", value=counts.messages)
    yield counter("picker_unread", "Requests without a prompt, sent by load.", value=counts.unread)
    yield counter(
        "picker_served_elsewhere",
        "Answers of another engine than the one told first.",
        value=counts.elsewhere,
    )
    yield counter(
        "picker_refusals",
        "Requests that we answered ourselves, by status.",
        ["status"],
        {(str(status),): n for status, n in counts.refusals.items()},
    )
    yield from _of_models(counts)
    yield from _of_pool(engines, pool)
    info = GaugeMetricFamily(
        "inference_extension_info", "Always 1.", labels=["commit", "build_ref"]
    )
    info.add_metric(["", f"inferway {__version__}"], 1)
    yield info


def _of_models(counts: PickerCounts) -> Iterator[Family]:
    models = counts.models.items()
    requests = CounterMetricFamily(
        f"{_OBJECTIVE}request", "Requests by model, and what it was sent on as.", labels=_MODELS
    )
    errors = CounterMetricFamily(
        f"{_OBJECTIVE}request_error",
        "Of them, those without a whole answer.",
        labels=[*_MODELS, "error_code"],
    )
    running = GaugeMetricFamily(
        f"{_OBJECTIVE}running_requests", "Requests under way.", labels=["model_name"]
    )
    by_name: dict[str, int] = {}
    for names, model in models:
        requests.add_metric(names, model.requests)
        for code, number in model.errors.items():
            errors.add_metric([*names, code], number)
        by_name[names[0]] = by_name.get(names[0], 0) + model.running
    for name, number in by_name.items():
        running.add_metric([name], number)
    yield from (requests, errors, running)
    for name, text, of in _HISTOGRAMS:
        family = HistogramMetricFamily(f"{_OBJECTIVE}{name}", text, labels=_MODELS)
        for names, model in models:
            histogram = of(model)
            family.add_metric(names, histogram.buckets(), histogram.total)
        yield family


def _of_pool(engines: Sequence[Engine], pool: str) -> Iterator[Family]:
    ready = [engine for engine in engines if engine.healthy]
    queues = [engine.load.waiting for engine in ready]
    usages = [engine.load.kv_usage for engine in ready]
    for name, text, value in (
        ("ready_pods", "Engines that answer.", len(ready)),
        ("average_queue_size", "Requests waiting in each, on average.", _mean(queues)),
        ("average_kv_cache_utilization", "Share of KV blocks in use, on average.", _mean(usages)),
    ):
        family = GaugeMetricFamily(f"{_POOL}{name}", text, labels=["name"])
        family.add_metric([pool], value)
        yield family
    each = GaugeMetricFamily(
        f"{_POOL}per_pod_queue_size",
        "Requests waiting in each.",
        labels=["name", "model_server_pod"],
    )
    for engine, waiting in zip(ready, queues, strict=True):
        each.add_metric([pool, engine.name], waiting)
    yield each


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
