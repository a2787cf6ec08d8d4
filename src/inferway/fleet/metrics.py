"""Metric families of the engines: their load, how it comes to be known, their event streams and
what these began with (`state_dir`), their models, and how far the gateway's prompts agree with
theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from inferway.fleet.engine import ProofState
from inferway.fleet.fleet import Fleet
from inferway.fleet.stream_figures import SnapshotFigures, SnapshotProof, StreamFigures
from inferway.kv.events.stream import StreamState
from inferway.metrics import Family, Row, counter, gauge, table
from inferway.model import SCRAPED, Endpoint

_ENGINE = ["engine"]


def fleet_families(fleet: Fleet) -> Iterator[Family]:
    """Yield the families of all engines, by the engine's name, and of their models."""
    engines = {(engine.name,): engine for engine in fleet.engines}
    yield gauge(
        "engine_up",
        "1 if the engine answers, else 0.",
        _ENGINE,
        {key: engine.healthy for key, engine in engines.items()},
    )
    for name, figure in SCRAPED.items():
        yield gauge(
            f"engine_{name}",
            f"{figure.about}, as the engine says.",
            _ENGINE,
            {key: engine.load[name] for key, engine in engines.items()},
        )
    yield gauge(
        "engine_in_flight",
        "Requests that were sent to the engine and have not ended; those of other gateways are not "
        "counted.",
        _ENGINE,
        dict(zip(engines, fleet.table.own_in_flight(list(engines.values())), strict=True)),
    )
    yield gauge(
        "index_blocks",
        "Blocks that the engine holds by the gateway's view.",
        _ENGINE,
        {key: fleet.table.num_blocks(engine) for key, engine in engines.items()},
    )
    yield from fleet.watch.families()
    yield from stream_families(fleet)
    yield from snapshot_families(fleet)
    yield from _models(fleet)
    yield from _remote(fleet)
    yield from _proofs(fleet)


def _models(fleet: Fleet) -> Iterator[Family]:
    models = fleet.models.values()
    yield gauge(
        "encoder_info",
        "Always 1; the labels say what makes the model's tokens, and why.",
        ["model", "encoder", "why"],
        {
            (model.name, local.encoder[0], local.encoder[1].partition(":")[0]): 1
            for model in models
            if (local := model.prompts.local) is not None
        },
    )
    yield gauge(
        "model_faithful",
        "0 if an engine renders the model's prompts otherwise than the gateway, so"
        " that its requests go by load only; else 1.",
        ["model"],
        {(model.name,): model.unfaithful is None for model in models},
    )


def _remote(fleet: Fleet) -> Iterator[Family]:
    models = fleet.remote.models.values()
    yield counter(
        "remote_prompts",
        "Prompts that an engine had to render, by model and outcome.",
        ["model", "outcome"],
        {(m.model, outcome): n for m in models for outcome, n in m.stats.prompts.items()},
    )
    yield counter(
        "remote_questions",
        "Questions to an engine for the rendering of a prompt, by outcome.",
        ["model", "engine", "outcome"],
        {(m.model, *key): n for m in models for key, n in m.stats.questions.items()},
    )
    yield counter(
        "remote_prefixes",
        "Prompts that were routed by a known prefix, by whether the engine's"
        " rendering began with it: right or wrong.",
        ["model", "was"],
        {
            (m.model, was): n
            for m in models
            for was, n in (("right", m.stats.right_prefixes), ("wrong", m.stats.wrong_prefixes))
        },
    )
    yield gauge(
        "remote_bytes",
        "Bytes of memory that renderings kept from engines take.",
        ["model"],
        {(m.model,): m.renderings.num_bytes for m in models},
    )


def _proofs(fleet: Fleet) -> Iterator[Family]:
    yield gauge(
        "engine_proof",
        "1 for the state that the last comparison of token ids with the engine found, else 0.",
        ["engine", "model", "state"],
        {
            (engine.name, model, state): proof.state is state
            for engine in fleet.engines
            for model, proof in engine.proofs.items()
            for state in ProofState
        },
    )
    yield gauge(
        "model_tokens_once_off",
        "1 for a model whose prompts' token ids engines do not get until the gateway is"
        " started anew, because an engine has rendered a live prompt otherwise.",
        ["model"],
        {(model,): 1 for model in fleet.prober.differed},
    )
    yield counter(
        "probes",
        "Comparisons of the gateway's token ids with an engine's, by occasion and result.",
        ["occasion", "result"],
        fleet.prober.counts,
    )


LABELS = ["engine", "rank"]

Labels = tuple[str, ...]

_STREAMS: tuple[Row[StreamFigures], ...] = (
    (
        counter,
        "event_batches",
        "Messages that came from the engine's event stream.",
        lambda s: s.stats.batches,
    ),
    (
        counter,
        "events",
        "KV events of the engine that were applied to the index.",
        lambda s: s.stats.events,
    ),
    (
        counter,
        "blocks_stored",
        "Copies of blocks that the engine has stored, as its events say.",
        lambda s: s.blocks.stored,
    ),
    (
        counter,
        "blocks_removed",
        "Copies of blocks that the engine has removed, as its events say.",
        lambda s: s.blocks.removed,
    ),
    (
        counter,
        "blocks_orphaned",
        "Blocks that the engine stored while their parent was unknown, so that no"
        " prompt matches them.",
        lambda s: s.blocks.orphans,
    ),
    (
        counter,
        "blocks_adopted",
        "Blocks with an unknown parent whose keys a later prompt has shown, and the blocks before"
        " them.",
        lambda s: s.blocks.adopted,
    ),
    (
        counter,
        "stream_gaps",
        "Gaps in the sequence numbers of the engine's event stream.",
        lambda s: s.stream.gaps,
    ),
    (
        counter,
        "stream_replays",
        "Replays that were asked of the engine's event stream.",
        lambda s: s.stream.replays,
    ),
    (
        counter,
        "stream_restarts",
        "Restarts of the engine that its event stream showed.",
        lambda s: s.stream.restarts,
    ),
    (
        counter,
        "stream_unreadable",
        "Batches of events that could not be read and were asked for again, counted each time.",
        lambda s: s.stream.unreadable,
    ),
    (
        counter,
        "stream_forgotten",
        "Times that the whole view of the engine's cache had to be forgotten.",
        lambda s: s.stats.forgotten,
    ),
)

_SNAPSHOTS: tuple[Row[SnapshotFigures], ...] = (
    (
        gauge,
        "snapshot_loaded_blocks",
        "Blocks that were loaded from the snapshot when the engine was found.",
        lambda s: s.loaded_blocks,
    ),
    (
        gauge,
        "snapshot_load_seconds",
        "Seconds that loading the engine's part of the snapshot took.",
        lambda s: s.load_seconds,
    ),
)


def stream_families(fleet: Fleet) -> Iterator[Family]:
    """Yield the families of event streams; an engine without one has only a state: blind."""
    endpoints: dict[Labels, Endpoint] = {
        _labels(endpoint): endpoint for engine in fleet.engines for endpoint in engine.endpoints
    }
    streams: dict[Labels, StreamFigures] = {
        (engine.name, str(stream.source.rank)): stream.figures
        for engine in fleet.engines
        for stream in engine.subscribers
    }
    yield gauge(
        "stream_state",
        "1 for the state of the gateway's view of the engine's cache, else 0.",
        [*LABELS, "state"],
        {
            (*labels, state): fleet.state(endpoint) is state
            for labels, endpoint in endpoints.items()
            for state in StreamState
        },
    )
    yield counter(
        "heal_requests",
        "Requests that asked the engine to report all blocks that they reuse.",
        LABELS,
        {
            labels: fleet.healer.num_asked.get(endpoint.holder, 0)
            for labels, endpoint in endpoints.items()
        },
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
    yield from _messages(streams)


def _messages(streams: Mapping[Labels, StreamFigures]) -> Iterator[Family]:
    yield from table(_STREAMS, LABELS, streams)
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
        {labels: stream.num_orphans for labels, stream in streams.items()},
    )
    yield counter(
        "events_skipped",
        "Messages and KV events of the engine that were not used, by reason.",
        [*LABELS, "reason"],
        {
            (*labels, reason): num
            for labels, s in streams.items()
            for reason, num in (*s.stats.skipped.items(), *s.blocks.skipped.items())
        },
    )


def _labels(endpoint: Endpoint) -> Labels:
    return (endpoint.engine, str(endpoint.rank or 0))


def snapshot_families(fleet: Fleet) -> Iterator[Family]:
    """Yield the families of what streams began with; without `state_dir` they have no values."""
    snapshots: dict[Labels, SnapshotFigures] = {
        (engine.name, str(stream.source.rank)): snapshot
        for engine in fleet.engines
        for stream in engine.subscribers
        if (snapshot := stream.figures.snapshot) is not None
    }
    yield from table(_SNAPSHOTS, LABELS, snapshots)
    yield gauge(
        "snapshot_proof",
        "1 for what became of the blocks that were loaded from the snapshot, else 0.",
        [*LABELS, "proof"],
        {
            (*labels, proof): snapshot.proof is proof
            for labels, snapshot in snapshots.items()
            for proof in SnapshotProof
        },
    )
