"""A prompt that was looked up -> what each engine holds of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from inferway.errors import InvalidRequestError, NoEndpointError, RenderError, UnknownModelError
from inferway.fleet.columns import STATES
from inferway.fleet.fleet import Fleet
from inferway.kv.index.protocol import CPU, GPU
from inferway.model import Candidates, Reason
from inferway.prompts.served import ServedModel
from inferway.routing.match import Lookup, Matched, Matcher


class EngineScore(msgspec.Struct, frozen=True):
    """The part of a prompt that one engine, or one data-parallel rank of it, holds: its beginning
    up to the first missing block. A tail that fills no block never counts."""

    engine: str
    rank: int | None  # None: the engine has one, or balances its own
    state: str  # how true what we believe of it is: exact, partial, repairing, stale or blind
    block_size: int  # in tokens
    total_blocks: int  # of the prompt
    blocks: int  # of them held, in whatever tier
    score: float  # the same, each block weighed by the best tier it lies in
    tiers: tuple[int, int, int]  # blocks held in GPU; GPU or CPU; GPU, CPU or storage

    @property
    def name(self) -> str:
        """The key of this score in `Scores.engines`."""
        return self.engine if self.rank is None else f"{self.engine}/{self.rank}"

    @property
    def tokens(self) -> int:
        """The number of tokens that are held, in whatever tier."""
        return self.blocks * self.block_size


class Scores(msgspec.Struct, frozen=True):
    """The parts of a prompt that the live engines of its model hold."""

    model: str  # as engines call it in their answers
    prompt_tokens: int  # as far as they are known
    reason: Reason  # whether the prompt is known to its end
    engines: Mapping[str, EngineScore]  # by name; those that hold nothing too

    @property
    def best(self) -> EngineScore | None:
        """The engine with the highest score; None if nobody holds anything."""
        best = max(self.engines.values(), key=lambda engine: engine.score, default=None)
        return best if best is not None and best.blocks else None


def served_model(fleet: Fleet, model: str, lora: str | None = None) -> ServedModel:
    """Return the model, or its adapter `lora`, as the fleet serves it. Raises UnknownModelError,
    InvalidRequestError for an adapter of another model, or RenderError while no engine has told its
    block size."""
    served = fleet.model(model)
    if lora is not None:
        try:
            served = fleet.model(lora)
        except UnknownModelError as e:
            raise UnknownModelError(f"lora: no engine serves {lora!r}", param="lora") from e
        if served.lora is None or model not in {lora, *_parents(fleet, lora)}:
            raise InvalidRequestError(
                f"lora: {lora!r} is not an adapter of {model!r}", param="lora"
            )
    if not served.cuts:
        fleet.candidates(served.name)  # engines that are gone have not told theirs either
        raise RenderError(
            f"model {served.name!r}: its engines have not told their block size; give"
            " --engine URL,block_size=N",
            reason=Reason.NO_BLOCK_SIZE,
        )
    return served


def _parents(fleet: Fleet, adapter: str) -> set[str]:
    """Return the names of the models that the adapter was made from."""
    return {
        base.name
        for engine in fleet.engines
        if adapter in engine.model_names
        for base in engine.base_models
    }


def scores_of(
    fleet: Fleet,
    matcher: Matcher,
    served: ServedModel,
    lookup: Lookup,
    engines: Sequence[str] | None = None,
) -> Scores:
    """Return what each live engine of the model, or each of those that `engines` names, holds of
    the prompts that were looked up. Raises InvalidRequestError for a name that no engine has, and
    NoEndpointError if none of them is live."""
    candidates = fleet.candidates(served.name)
    matcher.fill(candidates, lookup.prompts, speculate=False)
    wanted = None if engines is None else _wanted(fleet, engines)
    scores = {
        endpoint.name: _engine_score(candidates, row, lookup.prompts)
        for row, endpoint in enumerate(candidates.endpoints)
        if wanted is None or endpoint.engine in wanted or endpoint.name in wanted
    }
    if not scores:
        raise NoEndpointError(
            f"model {served.name!r}: none of its live engines is among those asked for; live: "
            + ", ".join(endpoint.name for endpoint in candidates.endpoints)
        )
    prompts: Sequence[Matched] = next(iter(lookup.prompts.values()), ())
    num_tokens = sum(len(item.prompt.token_ids) for item in prompts)
    return Scores(served.engine_name or served.name, num_tokens, lookup.reason, scores)


def _wanted(fleet: Fleet, names: Sequence[str]) -> frozenset[str]:
    """Return the names, of which an engine's stands for all its ranks. Raises InvalidRequestError
    for one that is unknown."""
    known = {engine.name for engine in fleet.engines}
    known |= {e.name for engine in fleet.engines for e in engine.endpoints}
    for name in names:
        if name not in known:
            raise InvalidRequestError(
                f"engines: no engine is called {name!r}; known: {', '.join(sorted(known))}",
                param="engines",
            )
    return frozenset(names)


def _engine_score(
    candidates: Candidates, row: int, prompts: Mapping[int, Sequence[Matched]]
) -> EngineScore:
    endpoint, block_size = candidates.endpoints[row], int(candidates.block_sizes[row])
    items = prompts.get(int(candidates.cuts[row]), ())
    holder, blocks = endpoint.holder, int(candidates.matched_blocks[row])
    gpu, cpu = (sum(item.found.within(holder, tier) for item in items) for tier in (GPU, CPU))
    return EngineScore(
        engine=endpoint.engine,
        rank=endpoint.rank,
        state=str(STATES[int(candidates.states[row])]),
        block_size=block_size,
        total_blocks=int(candidates.prompt_blocks[row]),
        blocks=blocks,
        score=float(candidates.weighted_matched_blocks[row]),
        tiers=(gpu, cpu, blocks),
    )
