"""The scheduler's state under vLLM's metric names (v1/metrics/loggers.py), read when scraped."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inferway.simulator.config import SimulatorConfig
from inferway.simulator.scheduler import Scheduler

_TEXT = "The simulated engine's value of the metric that vLLM has under this name."
_LABELS = ("model_name", "engine")
# vLLM 0.32, v1/metrics/buckets.py: TIME_TO_FIRST_TOKEN_BUCKETS
_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)


class EngineMetrics(Collector):
    """The metrics of one engine, as `GET /metrics` answers them. It owns its registry, because
    several engines live in one process."""

    def __init__(self, config: SimulatorConfig, scheduler: Scheduler) -> None:
        self._config = config
        self._scheduler = scheduler
        self._values = (config.names[0], "0")
        self._registry = CollectorRegistry(auto_describe=True)  # so that names can be asked for
        self._registry.register(self)
        ttft = Histogram(
            "vllm:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            _LABELS,
            buckets=_TTFT_BUCKETS,
            registry=self._registry,
        )
        self.first_token = ttft.labels(*self._values).observe

    def text(self, names: Collection[str] = ()) -> bytes:
        """The Prometheus text format; of these samples alone, if any are named."""
        return generate_latest(
            self._registry.restricted_registry(names) if names else self._registry
        )

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the registry calls this."""
        scheduler, totals = self._scheduler, self._scheduler.totals
        yield self._cache_config()
        yield self._gauge("num_requests_running", len(scheduler.running))
        yield self._gauge("num_requests_waiting", len(scheduler.waiting))
        yield self._gauge("kv_cache_usage_perc", scheduler.cache.usage)
        # A prompt is looked up once, all of it; what was found need not be computed.
        yield self._counter("prefix_cache_queries", totals.prompt_tokens)
        yield self._counter("prefix_cache_hits", totals.prompt_tokens_cached)
        yield self._counter("prompt_tokens", totals.prompt_tokens)
        yield self._counter("prompt_tokens_cached", totals.prompt_tokens_cached)
        yield self._counter("generation_tokens", totals.generation_tokens)
        yield self._counter("num_preemptions", totals.preemptions)

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", _TEXT, labels=_LABELS)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", _TEXT, labels=_LABELS)
        family.add_metric(self._values, value)
        return family

    def _cache_config(self) -> Metric:
        labels = {
            "block_size": str(self._config.block_size),
            "num_gpu_blocks": str(self._config.kv_cache_size),
            "enable_prefix_caching": "True",
            "prefix_caching_hash_algo": "sha256",
            "engine": "0",
        }
        family = GaugeMetricFamily("vllm:cache_config_info", _TEXT, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), 1)
        return family
