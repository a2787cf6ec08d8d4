"""The models that engines serve, and how their prompts become tokens.

A model's tokenizer is loaded once for all names and engines, beside the running requests; until it
is there, and where there is none, its requests go by load only. Written by itself as tokenizers
come, and by `fleet.Fleet` as engines do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from inferway.config import ModelSettings
from inferway.fleet.discovery import ModelCard
from inferway.fleet.engine import Engine
from inferway.fleet.remote_prompts import RemotePrompts
from inferway.model import Reason
from inferway.prompts.served import (
    ModelSource,
    NoPrompts,
    PromptSource,
    ServedModel,
    made_here,
)

log = logging.getLogger("inferway.fleet")

TOKENIZER_RETRY_SECONDS = 30.0  # a hub that was away may be back

LoadPrompts = Callable[[ModelSource], Awaitable[PromptSource]]
Around = Callable[[ModelSource, PromptSource], PromptSource]


class ServedModels:
    """`by_name` is everybody's to read. A *key* names a source of prompts: the same for all names
    of a model and its adapters."""

    def __init__(
        self,
        given: Mapping[str, ModelSettings],
        load: LoadPrompts,
        around: Around,  # lets engines render what we cannot
        spawn: Callable[[Awaitable[None]], None],
        on_loaded: Callable[[str], None],  # a key: its prompts have come
    ) -> None:
        self.by_name: dict[str, ServedModel] = {}
        self._given = given
        self._load_prompts = load
        self._around = around
        self._spawn = spawn
        self._on_loaded = on_loaded
        self._prompts: dict[str, PromptSource] = {}  # by key
        self._keys: dict[str, str] = {}  # by model
        self._live: set[str] = set()  # models that an engine serves now
        self._has_named_unserved = False
        self._settled = False  # the first tokenizers have come, or cannot be had

    def learn(self, engine: Engine, card: ModelCard) -> None:
        """`engine` serves this; what is known already stays."""
        if card.name in self.by_name:
            return
        source = self._source(engine, card)
        self._keys[card.name] = source.key
        lora = card.name if card.parent else None
        answers_as = card.name if lora else engine.model_names[0]  # as vLLM does
        if source.key not in self._prompts:
            why = f"model {card.name!r}: its tokenizer is being loaded"
            self._prompts[source.key] = NoPrompts(Reason.TOKENIZER_LOADING, why)
            self._spawn(self._load(source))
        self.by_name[card.name] = ServedModel(
            card.name, self._prompts[source.key], lora=lora, answers_as=answers_as
        )

    def name_unserved(self, engines: Sequence[Engine]) -> None:
        """Warns once of settings for models that no engine serves, when all have answered."""
        if self._has_named_unserved or any(engine.facts is None for engine in engines):
            return
        self._has_named_unserved = True
        names = {card.name for engine in engines for card in engine.base_models}
        unserved = sorted(self._given.keys() - names)
        if unserved:
            log.warning(
                "models (--tokenizer, --chat-template): no engine serves %s, so what is said of it"
                " has no effect; the engines serve %s: give one of these names",
                ", ".join(map(repr, unserved)),
                ", ".join(map(repr, sorted(names))) or "no model",
            )

    def refresh(self, name: str, engines: Sequence[Engine]) -> None:
        """What its engines, those that are well, make of a model: block sizes, and whether we
        render as they do."""
        served = self.by_name[name]
        (self._live.add if engines else self._live.discard)(name)
        sizes = sorted({e.block_size for e in engines if e.block_size is not None})
        unfaithful = self._unfaithful(engines, name)
        if list(served.block_sizes) != sizes or served.unfaithful != unfaithful:
            self.by_name[name] = replace(served, block_sizes=sizes, unfaithful=unfaithful)

    def prompts(self, key: str) -> PromptSource:
        return self._prompts[key]

    @property
    def is_loading(self) -> bool:
        """Whether a tokenizer is being loaded for the first time."""
        return any(_is_loading(prompts) for prompts in self._prompts.values())

    @property
    def first_load(self) -> str | None:
        """Which tokenizer is being loaded before any request was matched; None once that is over,
        though others may be loaded later: requests for other models do not wait for those."""
        if self._settled:
            return None
        loading = (p.why for p in self._prompts.values() if _is_loading(p))
        return next(loading, None)

    def subjects(self, engine: Engine) -> dict[str, str]:
        """A key -> the name under which the engine is asked for it."""
        subjects: dict[str, str] = {}
        for card in engine.base_models:
            if card.name in self._keys:  # else it has only just been told
                subjects.setdefault(self._keys[card.name], card.name)
        return subjects

    def subject(self, engine: Engine, model: str) -> str:
        """The name under which the engine is asked for a model's prompts."""
        return self.subjects(engine).get(self._keys[model], model)

    def report(self, for_all: Reason | None = None) -> dict[str, Any]:
        """For /ready: the reason that each model's requests are counted under, and why. `for_all`:
        why none can be matched, whatever is known of its prompts."""
        return {
            name: _routed_by(served, for_all) if name in self._live else _NOT_SERVED
            for name, served in sorted(self.by_name.items())
        }

    def _source(self, engine: Engine, card: ModelCard) -> ModelSource:
        """An adapter's is its base model's, as in vLLM. Settings under any of the names that the
        engine gives its model hold for all of them."""
        bases = engine.base_models
        base = next((b for b in bases if b.name == card.parent), card)
        names = [base.name, *(other.name for other in bases)]
        given = self._given
        flags = next((given[name] for name in names if name in given), ModelSettings())
        root = flags.tokenizer or base.root or base.name
        return ModelSource(card.name, root, base.max_model_len, flags)

    async def _load(self, source: ModelSource, before: NoPrompts | None = None) -> None:
        own = await self._load_prompts(source)
        self._install(source.key, self._around(source, own), own)
        if isinstance(own, NoPrompts):
            if before is None or before.why != own.why:
                log.warning("%s; its requests go by load only where no engine renders", own.why)
            self._spawn(self._load_again(source, own))

    async def _load_again(self, source: ModelSource, before: NoPrompts) -> None:
        await asyncio.sleep(TOKENIZER_RETRY_SECONDS)
        await self._load(source, before)

    def _install(self, key: str, prompts: PromptSource, own: PromptSource) -> None:
        """`own` is what `prompts` are made of."""
        before, self._prompts[key] = self._prompts[key], prompts
        self._settled = self._settled or not self.is_loading
        if before is prompts and isinstance(own, NoPrompts):
            return
        for served in list(self.by_name.values()):
            if served.prompts is before:
                self.by_name[served.name] = replace(served, prompts=prompts)
        self._on_loaded(key)

    def _unfaithful(self, engines: Sequence[Engine], model: str) -> str | None:
        for engine in engines:
            if any(proof.fault for proof in engine.proofs.values()):
                proof = engine.proofs.get(self.subject(engine, model))
                if proof is not None and proof.fault is not None:
                    return f"engine {engine.name} renders otherwise than we do: {proof.fault}"
        return None


# of a model whose requests are a 503: no reason that one is routed by
_NOT_SERVED = {"reason": "no-engine", "why": "no engine that serves it answers"}

_WHY_NONE = {
    Reason.LOAD_ONLY: "scoring is switched off",
    Reason.INDEX_AWAY: "the server of the shared index does not answer",
}


def _is_loading(prompts: PromptSource) -> TypeGuard[NoPrompts]:
    return isinstance(prompts, NoPrompts) and prompts.reason is Reason.TOKENIZER_LOADING


def _routed_by(served: ServedModel, for_all: Reason | None) -> dict[str, Any]:
    found = _prompts_by(served)
    if for_all is None or (for_all != Reason.LOAD_ONLY and found["reason"] != Reason.KV_AWARE):
        return found
    return {"reason": for_all, "why": _WHY_NONE[for_all]}


def _prompts_by(served: ServedModel) -> dict[str, Any]:
    if not served.block_sizes:
        why = "its engines have not told their block size; give --engine URL,block_size=N"
        return {"reason": Reason.NO_BLOCK_SIZE, "why": why}
    if isinstance(served.prompts, RemotePrompts) and served.unfaithful is None:
        return served.prompts.report()
    if isinstance(served.prompts, NoPrompts):
        return {"reason": served.prompts.reason, "why": served.prompts.why}
    if served.unfaithful is not None:
        return {"reason": Reason.UNFAITHFUL, "why": served.unfaithful}
    return made_here(served.prompts)
