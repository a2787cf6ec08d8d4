"""What /metrics shows of the engines: their load, how it comes to be known, their models, and how
far the gateway's prompts agree with theirs."""

from __future__ import annotations

from collections.abc import Iterator

from inferway.fleet.engine import ProofState
from inferway.fleet.fleet import Fleet
from inferway.fleet.stream_metrics import snapshot_families, stream_families
from inferway.metrics import Family, counter, gauge
from inferway.model import SCRAPED

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
            (model.name, local.tokenizer.encoder, local.tokenizer.why.partition(":")[0]): 1
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
