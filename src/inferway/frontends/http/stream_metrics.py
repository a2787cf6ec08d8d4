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

_COUNTERS: tuple[tuple[str, str, Callable[[EventSubscriber], int]], ...] = (
    (
        "event_batches",
        "Messages that came from the engine's event stream.",
        lambda s: s.stats.batches,
    ),
    (
        "events",
        "KV events of the engine that were applied to the index.",
        lambda s: s.stats.events,
    ),
    (
        "blocks_stored",
        "Copies of blocks that the engine has stored, as its events say.",
        lambda s: s.blocks.stats.stored,
    ),
    (
        "blocks_removed",
        "Copies of blocks that the engine has removed, as its events say.",
        lambda s: s.blocks.stats.removed,
    ),
    (
        "blocks_orphaned",
        "Blocks that the engine stored while their parent was unknown, so that no"
        " prompt matches them.",
        lambda s: s.blocks.stats.orphans,
    ),
    (
        "blocks_adopted",
        "Blocks with an unknown parent whose keys a later prompt has shown, and the blocks before"
        " them.",
        lambda s: s.blocks.stats.adopted,
    ),
    (
        "stream_gaps",
        "Gaps in the sequence numbers of the engine's event stream.",
        lambda s: s.stream.stats.gaps,
    ),
    (
        "stream_replays",
        "Replays that were asked of the engine's event stream.",
        lambda s: s.stream.stats.replays,
    ),
    (
        "stream_restarts",
        "Restarts of the engine that its event stream showed.",
        lambda s: s.stream.stats.restarts,
    ),
    (
        "stream_unreadable",
        "Batches of events that could not be read and were asked for again, counted each time.",
        lambda s: s.stream.stats.unreadable,
    ),
    (
        "stream_forgotten",
        "Times that everything believed of the engine's cache had to be forgotten.",
        lambda s: s.stats.forgotten,
    ),
)


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
        "1 for the state of what is believed of the engine's cache, else 0.",
        labels=[*LABELS, "state"],
    )
    for labels, endpoint in endpoints.items():
        for each in StreamState:
            state.add_metric([*labels, each], float(fleet.state(endpoint) is each))
    yield state
    yield gauge(
        "stream_age_seconds",
        "Seconds since the last message of the engine's event stream.",
        LABELS,
        {
            labels: time.monotonic() - stream.last_batch_at
            for labels, stream in streams.items()
            if stream.last_batch_at is not None
        },
    )
    yield gauge(
        "orphans",
        "Blocks that the engine holds and that no prompt matches because their parent is unknown.",
        LABELS,
        {labels: stream.blocks.num_orphans for labels, stream in streams.items()},
    )
    yield gauge(
        "hash_dialect_info",
        "Always 1; the labels say how the engine hashes its blocks, and whether that is known.",
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
        "Requests that asked the engine to report all blocks that they reuse.",
        LABELS,
        {
            labels: fleet.healer.num_asked.get(endpoint.holder, 0)
            for labels, endpoint in endpoints.items()
        },
    )


def _labels(endpoint: Endpoint) -> Labels:
    return (endpoint.engine, str(endpoint.rank or 0))


def _counters(streams: Mapping[Labels, EventSubscriber]) -> Iterator[Family]:
    for name, text, value in _COUNTERS:
        yield counter(name, text, LABELS, {labels: value(s) for labels, s in streams.items()})
    skipped: dict[Labels, float] = {
        (*labels, reason): num
        for labels, s in streams.items()
        for reason, num in (*s.stats.skipped.items(), *s.blocks.stats.skipped.items())
    }
    yield counter(
        "events_skipped",
        "Messages and KV events of the engine that were not used, by reason.",
        [*LABELS, "reason"],
        skipped,
    )
