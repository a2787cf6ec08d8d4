"""The scheduler's state under vLLM's metric names (v1/metrics/loggers.py), read when scraped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inferway_sim.config import SimulatorConfig
from inferway_sim.drafting import Drafter
from inferway_sim.kv_transfer import Connector
from inferway_sim.scheduler import Scheduler

_TEXT = "The simulated engine's value of the metric that vLLM has under this name."
_LABELS = ("model_name", "engine")
# vLLM 0.32, v1/metrics/buckets.py: TIME_TO_FIRST_TOKEN_BUCKETS
_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)

_XFER_TIME_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_BYTES_BUCKETS = tuple(2 ** (10 + i) for i in range(1, 25, 2))
_DESCRIPTORS_BUCKETS = (
    *(10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10_000, 20_000, 50_000),
)
_BYTES_A_TOKEN = 46_080  # of SmolLM2-135M in float32, as seen


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
        self._updates: Histogram | None = None
        self.first_token = ttft.labels(*self._values).observe
        transfer = scheduler.transfer
        if transfer is not None and transfer.config.connector.startswith("nixl"):
            self._observe_transfers(transfer)

    def updated_weights(self) -> None:
        """Count an update of the weights; as in vLLM, there is no such metric before the first."""
        if self._updates is None:
            name = "vllm:rl_weight_update_operation_duration_seconds"
            self._updates = Histogram(name, _TEXT, ["operation"], registry=self._registry)
        self._updates.labels("update").observe(0.0)

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
        waiting, loading = len(scheduler.waiting), len(scheduler.loading)
        yield self._gauge("num_requests_waiting", waiting + loading)
        by_reason = {"capacity": waiting, "deferred": loading}
        yield self._by(GaugeMetricFamily, "num_requests_waiting_by_reason", "reason", by_reason)
        level = scheduler.sleep_level
        states = {
            "awake": level is None,
            "weights_offloaded": level == 1,
            "discard_all": level == 2,
        }
        yield self._by(GaugeMetricFamily, "engine_sleep_state", "sleep_state", states)
        yield self._gauge("kv_cache_usage_perc", scheduler.cache.usage)
        # A prompt is looked up once, all of it; what was found need not be computed.
        yield self._counter("prefix_cache_queries", totals.prompt_tokens)
        external = totals.prompt_tokens_external
        local = totals.prompt_tokens_cached - external
        yield self._counter("prefix_cache_hits", local)
        yield self._counter("prompt_tokens", totals.prompt_tokens)
        yield self._counter("prompt_tokens_cached", totals.prompt_tokens_cached)
        by_source = {
            "local_compute": totals.prompt_tokens - local - external,
            "local_cache_hit": local,
            "external_kv_transfer": external,
        }
        yield self._by(CounterMetricFamily, "prompt_tokens_by_source", "source", by_source)
        yield self._counter("generation_tokens", totals.generation_tokens)
        yield self._counter("num_preemptions", totals.preemptions)
        if scheduler.drafter is not None:
            yield from self._drafts(scheduler.drafter)
        if scheduler.transfer is not None:
            yield from self._transfers(scheduler.transfer, local, external)

    def _drafts(self, drafter: Drafter) -> Iterator[Metric]:
        yield self._counter("spec_decode_num_drafts", drafter.num_drafts)
        num_tokens = drafter.num_drafts * drafter.num_tokens
        yield self._counter("spec_decode_num_draft_tokens", num_tokens)
        yield self._counter("spec_decode_num_accepted_tokens", drafter.num_accepted)
        by_position = {str(i): count for i, count in enumerate(drafter.accepted_by_position)}
        name = "spec_decode_num_accepted_tokens_per_pos"
        yield self._by(CounterMetricFamily, name, "position", by_position)

    def _transfers(self, transfer: Connector, local: int, external: int) -> Iterator[Metric]:
        scheduler = self._scheduler
        queries = scheduler.totals.prompt_tokens - local
        yield self._counter("external_prefix_cache_queries", queries)
        yield self._counter("external_prefix_cache_hits", external)
        tiers = {"device": local, "host": 0, "disk": 0, "p2p": external, "external_unspecified": 0}
        yield self._by(CounterMetricFamily, "prompt_tokens_cached_by_source", "source", tiers)
        if transfer.config.role != "producer":
            loading = len(scheduler.loading)
            stages = {"waiting_to_start": 0, "in_progress": loading, "completed_waiting": 0}
            name = "num_requests_kv_fetch_by_stage"
            yield self._by(GaugeMetricFamily, name, "stage", stages)
        if transfer.config.connector.startswith("nixl"):
            yield self._counter("nixl_num_failed_transfers", transfer.num_failed)
            yield self._counter("nixl_num_failed_notifications", 0)
            yield self._counter("nixl_num_kv_expired_reqs", transfer.num_expired)
            yield self._counter("nixl_num_notifications_after_expiry", transfer.num_late)

    def _observe_transfers(self, transfer: Connector) -> None:
        """The histograms of NIXL's transfers, with vLLM's buckets (nixl/stats.py)."""
        seconds = self._histogram("nixl_xfer_time_seconds", _XFER_TIME_BUCKETS[1:])
        posting = self._histogram("nixl_post_time_seconds", _XFER_TIME_BUCKETS)
        size = self._histogram("nixl_bytes_transferred", _BYTES_BUCKETS)
        descriptors = self._histogram("nixl_num_descriptors", _DESCRIPTORS_BUCKETS)

        def observe(time: float, num_blocks: int) -> None:
            seconds(time)
            posting(0)
            size(num_blocks * self._config.block_size * _BYTES_A_TOKEN)
            descriptors(num_blocks)

        transfer.on_transfer = observe

    def _histogram(self, name: str, buckets: Sequence[float]) -> Callable[[float], None]:
        family = Histogram(f"vllm:{name}", _TEXT, _LABELS, buckets=buckets, registry=self._registry)
        return family.labels(*self._values).observe

    def _by(
        self,
        family: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        label: str,
        values: Mapping[str, float],
    ) -> Metric:
        metric = family(f"vllm:{name}", _TEXT, labels=(*_LABELS, label))
        for key, value in values.items():
            metric.add_metric((*self._values, key), value)
        return metric

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", _TEXT, labels=_LABELS)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", _TEXT, labels=_LABELS)
        family.add_metric(self._values, value)
        return family

    def _cache_config(self) -> Metric:
        told = {key: str(value) for key, value in self._config.cache_config.items()}
        labels = told | {"engine": "0"}
        family = GaugeMetricFamily("vllm:cache_config_info", _TEXT, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), 1)
        return family
