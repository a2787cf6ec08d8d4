"""Counters of the plugin, on vLLM's own /metrics. Engine cores are asked when the page is; where
one is busy for too long, what it said last stands there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from inferway_structured.counts import FAMILIES, Family, Snapshot
from inferway_structured.vllm.endpoints import stats

if TYPE_CHECKING:
    from inferway_structured.vllm.front import ApiServerSide

log = logging.getLogger("vllm.inferway")

PATH = "/metrics"
PREFIX = "inferway_structured_"
PATIENCE_SECONDS = 0.5

_Sample = tuple[str, dict[str, str], float]  # what is added to the family's name, labels, value


class Collector:
    """The collector that prometheus_client's registry calls."""

    def __init__(self, front: ApiServerSide) -> None:
        self._told: dict[str, Any] = front.counts.snapshot()
        self._front = front

    async def refresh(self, engine_client: Any) -> None:
        try:
            asking = stats(self._front, engine_client)
            self._told = (await asyncio.wait_for(asking, PATIENCE_SECONDS))["counts"]
        except Exception as e:  # whatever it is, the page is answered
            log.debug(
                "/metrics shows the engine core's counts as of its last answer, because asking it "
                "failed: %s",
                type(e).__name__,
            )

    def collect(self) -> Iterator[Any]:
        return metrics_of(self._told)


def metrics_of(snapshot: Snapshot) -> Iterator[Any]:
    """Yield the families of a page as prometheus_client has them."""
    from prometheus_client.core import Metric

    for name, values in snapshot.items():
        family = FAMILIES[name]
        metric = Metric(PREFIX + name, family.help, family.type)
        is_plain = family.type != "histogram"
        for suffix, labels, value in _plain(family, values) if is_plain else _histogram(values):
            metric.add_sample(PREFIX + name + suffix, labels, value)
        yield metric


def _plain(family: Family, values: Mapping[str, float]) -> Iterator[_Sample]:
    suffix = "_total" if family.type == "counter" else ""
    if not family.labels:
        values = {"": 0, **values}  # there from the start, so that a rate can be taken
    for joined, value in values.items():
        given = joined.split("/") if family.labels else []
        yield suffix, dict(zip(family.labels, given, strict=True)), value


def _histogram(values: Mapping[str, float]) -> Iterator[_Sample]:
    so_far = 0.0
    for bound, count in values.items():
        if bound != "sum":
            so_far += count
            yield "_bucket", {"le": bound}, so_far
    if values:
        yield "_sum", {}, values["sum"]
        yield "_count", {}, so_far


def registered(front: ApiServerSide) -> Collector:
    """Register the counters on vLLM's metrics page. With several API servers that page is made of
    files and has prometheus_client's own numbers alone; then only /v1/structured/stats shows the
    counters."""
    from prometheus_client import REGISTRY

    collector = Collector(front)
    REGISTRY.register(collector)
    return collector
