"""What /metrics shows of the engines' event streams, by engine and data-parallel rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily

from inferway.events.stream import StreamState
from inferway.fleet.fleet import Fleet
from inferway.fleet.subscriber import EventSubscriber
from inferway.frontends.http.families import Family, counter, gauge
from inferway.model import Endpoint

LABELS = ["engine", "rank"]

Labels = tuple[str, ...]


def stream_families(fleet: Fleet) -> Iterator[Family]:
    """An engine without a stream has only a state: blind."""
    endpoints: dict[Labels, Endpoint] = {
        _labels(endpoint): endpoint for engine in fleet.engines for endpoint in engine.endpoints
    }
    streams: dict[Labels, EventSubscriber] = {
        (engine.name, str(stream.source.rank)): stream
        for engine in fleet.engines
        for stream in engine.subscribers
    }
    state = GaugeMetricFamily(
        "inferway_stream_state",
        "1 for how true what we believe of its cache is, else 0.",
        labels=[*LABELS, "state"],
    )
    for labels, endpoint in endpoints.items():
        for each in StreamState:
            state.add_metric([*labels, each], float(fleet.state(endpoint) is each))
    yield state
    yield gauge(
        "stream_age_seconds",
        "Since the engine's last batch of events.",
        LABELS,
        {
            labels: time.monotonic() - stream.last_batch_at
            for labels, stream in streams.items()
            if stream.last_batch_at is not None
        },
    )
    yield gauge(
        "orphans",
        "Blocks it holds that no prompt can be matched with: their parents were missed.",
        LABELS,
        {labels: stream.blocks.num_orphans for labels, stream in streams.items()},
    )
    yield gauge(
        "hash_dialect_info",
        "Always 1: how the engine hashes its blocks.",
        [*LABELS, "state", "dialect"],
        {
            (engine.name, str(rank), finder.state, finder.name or ""): 1
            for engine in fleet.engines
            for rank, finder in engine.dialects.items()
        },
    )
    yield from _counters(streams)
    yield counter(
        "heal_requests",
        "Requests that asked for a report of what they reuse.",
        LABELS,
        {
            labels: fleet.healer.num_asked.get(endpoint.holder, 0)
            for labels, endpoint in endpoints.items()
        },
    )


def _labels(endpoint: Endpoint) -> Labels:
    return (endpoint.engine, str(endpoint.rank or 0))


def _counters(streams: Mapping[Labels, EventSubscriber]) -> Iterator[Family]:
    def each(name: str, text: str, value: Callable[[EventSubscriber], int]) -> Family:
        return counter(name, text, LABELS, {labels: value(s) for labels, s in streams.items()})

    yield each("event_batches", "Batches of events received.", lambda s: s.stats.batches)
    yield each("events", "Events applied to the index.", lambda s: s.stats.events)
    yield each("blocks_stored", "Copies of blocks stored.", lambda s: s.blocks.stats.stored)
    yield each("blocks_removed", "Copies of blocks removed.", lambda s: s.blocks.stats.removed)
    yield each(
        "blocks_orphaned",
        "Blocks whose parent was not known.",
        lambda s: s.blocks.stats.orphans,
    )
    yield each(
        "blocks_adopted",
        "Blocks without known parents that a prompt has met since.",
        lambda s: s.blocks.stats.adopted,
    )
    yield each("stream_gaps", "Gaps in the sequence numbers.", lambda s: s.stream.stats.gaps)
    yield each("stream_replays", "Replays asked for.", lambda s: s.stream.stats.replays)
    yield each("stream_restarts", "Engine restarts.", lambda s: s.stream.stats.restarts)
    yield each(
        "stream_unreadable",
        "Batches that could not be read and were asked for again.",
        lambda s: s.stream.stats.unreadable,
    )
    yield each(
        "stream_forgotten",
        "Times that all we believed of it was forgotten.",
        lambda s: s.stats.forgotten,
    )
    skipped: dict[Labels, float] = {
        (*labels, reason): num
        for labels, s in streams.items()
        for reason, num in (*s.stats.skipped.items(), *s.blocks.stats.skipped.items())
    }
    yield counter("events_skipped", "Messages and events not used.", [*LABELS, "reason"], skipped)
