"""The models that engines serve, and how their prompts become tokens.

What a model is, its engines say: where its tokenizer and template are, its context length, whose
adapter it is. `engine.facts` has that as of the last look, and all that is said of a model here is
made of it anew whenever it changes (`refresh`). Where engines name different places for one model,
the one that was taken first holds, as long as an engine that is well names it and no engine has
proven to render otherwise: machines keep the same files at different places.

A tokenizer is loaded once for all names and engines, beside the running requests; until it is
there, and where there is none, its requests go by load only. Files that have changed are read again
when one of their engines has been away. Written by itself as tokenizers come, and by `fleet.Fleet`
as engines do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from inferway.config import ModelSettings
from inferway.fleet.engine import Engine, ProbeState, ProofState
from inferway.fleet.engine_facts import ModelCard
from inferway.fleet.remote_prompts import RemotePrompts
from inferway.model import ContextLengths, HolderId, Reason
from inferway.prompts.scoring_input import NO_POOLING, PoolingFacts
from inferway.prompts.served import (
    ModelSource,
    NoPrompts,
    PromptSource,
    ServedModel,
    made_here,
)
from inferway.prompts.version_rules import VersionRules

log = logging.getLogger("inferway.fleet")

TOKENIZER_RETRY_SECONDS = 30.0  # a hub that was away may be back

LoadPrompts = Callable[[ModelSource], Awaitable[PromptSource]]
Around = Callable[[ModelSource, PromptSource], PromptSource]
Lengths = tuple[int | None, int | None]  # the least and the most


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
        # the same, by context lengths and rules
        self._within: dict[tuple[str, Lengths, VersionRules], PromptSource] = {}
        self._sources: dict[str, ModelSource] = {}  # by model
        self._live: set[str] = set()  # models that an engine serves now
        self._has_named_unserved = False
        self._settled = False  # the first tokenizers have come, or cannot be had

    def learn(self, engine: Engine) -> None:
        """Learn what `engine` has told of itself. `refresh` follows."""
        cards = engine.facts.models if engine.facts is not None else ()
        engine.offers = {card.name: self._source(engine, card) for card in cards}

    def look_again(self, engine: Engine) -> None:
        """Read the files again of an engine's models: it has been away, and they may be others now,
        at the same path."""
        for source in {self._sources[n].key: self._sources[n] for n in engine.offers}.values():
            if not isinstance(self._prompts[source.key], NoPrompts):  # else it is tried anyway
                self._spawn(self._read_again(source))

    def name_unserved(self, engines: Sequence[Engine]) -> None:
        """Warn once of settings for models that no engine serves, when all have answered."""
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

    def refresh(self, offering: Mapping[str, Sequence[Engine]]) -> None:
        """Derive each model from what its engines say as of now. A model without engines keeps what
        was known last."""
        for name, engines in offering.items():
            live = [engine for engine in engines if engine.healthy]
            (self._live.add if live else self._live.discard)(name)
            if engines:
                self._choose(name, engines, live or engines)
                self.by_name[name] = self._served(name, engines, live)
            else:
                self.by_name[name] = replace(self.by_name[name], cuts=())
        used = {source.key for source in self._sources.values()}
        for key in self._prompts.keys() - used:
            self._replace(key, None)

    @property
    def keys(self) -> Collection[str]:
        """The keys of all models."""
        return self._prompts.keys()

    def prompts(self, key: str) -> PromptSource:
        return self._prompts[key]

    @property
    def is_loading(self) -> bool:
        """True if a tokenizer is being loaded for the first time."""
        return any(_is_loading(prompts) for prompts in self._prompts.values())

    @property
    def first_load(self) -> str | None:
        """The tokenizer that is being loaded before any request was matched; None once that is
        over, though others may be loaded later: requests for other models do not wait for those."""
        if self._settled:
            return None
        loading = (p.why for p in self._prompts.values() if _is_loading(p))
        return next(loading, None)

    def subjects(self, engine: Engine) -> dict[str, str]:
        """Return, by key, the name under which the engine is asked for it."""
        subjects: dict[str, str] = {}
        for card in engine.base_models:
            if card.name in self._sources:  # else it has only just been told
                subjects.setdefault(self._sources[card.name].key, card.name)
        return subjects

    def subject(self, engine: Engine, model: str) -> str:
        """Return the name under which the engine is asked for a model's prompts."""
        return self.subjects(engine).get(self._sources[model].key, model)

    def report(self, *, by_load: bool) -> dict[str, Any]:
        """Return what /ready shows: the reason that each model's requests are counted under, and
        why. `by_load`: none is matched, whatever is known of its prompts."""
        return {
            name: (_BY_LOAD if by_load else _routed_by(served))
            if name in self._live
            else _NOT_SERVED
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
        return ModelSource(card.name, root, flags)

    def _choose(self, name: str, engines: Sequence[Engine], live: Sequence[Engine]) -> None:
        """Where the model's prompts come from: by those of its engines that are well, if any is."""
        before = self._sources.get(name)
        if before is not None:
            if any(engine.offers[name].key == before.key for engine in live):
                return
            named = any(engine.offers[name].key == before.key for engine in engines)
            if named and self._unfaithful(live, name) is None:
                return
        self._sources[name] = source = live[0].offers[name]
        if before is not None:
            log.warning(
                "model %r is learned anew: engine %s serves it from %r now, not from %r",
                *(name, live[0].name, source.root, before.root),
            )
        if source.key not in self._prompts:
            why = f"model {name!r}: its tokenizer is being loaded"
            self._prompts[source.key] = NoPrompts(Reason.TOKENIZER_LOADING, why)
            self._spawn(self._load(source))
        elif before is not None:
            self._on_loaded(source.key)

    def _served(self, name: str, engines: Sequence[Engine], live: Sequence[Engine]) -> ServedModel:
        """By what `engines` have said of themselves, of whom some are well now."""
        engine = (live or engines)[0]
        is_adapter = all(card.name != name for card in engine.base_models)
        contexts, rules = _contexts(engines), version_rules(engines)
        messages = [proof for engine in live if (proof := self._proof(engine, name)) is not None]
        return ServedModel(
            name,
            self._prompts_within(self._sources[name].key, contexts, rules),
            cuts=sorted({e.cut for e in live if e.cut is not None}),
            lora=name if is_adapter else None,
            lora_paths=_lora_paths(name, live) if is_adapter else {},
            unfaithful=self._unfaithful(live, name),
            unfaithful_messages=next((p.messages_why for p in messages if p.messages_why), None),
            counts_messages={p.messages for p in messages} == {ProofState.AGREES},
            contexts=contexts,
            rules=rules,
            pooling=self._pooling(name, live),
            caches_prefixes=any(e.sources and e.facts and e.facts.caches_prefixes for e in live),
            engine_name=name if is_adapter else engine.model_names[0],  # as vLLM does
        )

    def _prompts_within(
        self, key: str, contexts: ContextLengths, rules: VersionRules
    ) -> PromptSource:
        """The same object while nothing changes."""
        place = key, (contexts.least, contexts.most), rules
        found = self._within.get(place)
        if found is None:
            found = self._within[place] = self._prompts[key].within(contexts, rules)
        return found

    def _replace(self, key: str, prompts: PromptSource | None) -> None:
        """None: nobody needs them any more."""
        for place in [place for place in self._within if place[0] == key]:
            del self._within[place]
        if prompts is None:
            del self._prompts[key]
            return
        self._prompts[key] = prompts
        for name, served in list(self.by_name.items()):
            if self._sources[name].key == key:
                within = self._prompts_within(key, served.contexts, served.rules)
                self.by_name[name] = replace(served, prompts=within)

    async def _load(self, source: ModelSource, before: NoPrompts | None = None) -> None:
        own = await self._load_prompts(source)
        if source.key not in self._prompts:  # it is nobody's any more
            return
        self._install(source.key, self._around(source, own), own)
        if isinstance(own, NoPrompts):
            if before is None or before.why != own.why:
                log.warning("%s; its requests go by load only where no engine renders", own.why)
            self._spawn(self._load_again(source, own))

    async def _load_again(self, source: ModelSource, before: NoPrompts) -> None:
        await asyncio.sleep(TOKENIZER_RETRY_SECONDS)
        await self._load(source, before)

    async def _read_again(self, source: ModelSource) -> None:
        """What cannot be read now leaves what was read before."""
        own, before = await self._load_prompts(source), self._prompts.get(source.key)
        if before is None or own.local is None or before.local is None:
            return
        if own.local.made_of != before.local.made_of:
            log.info("model %r has other files now, at %s", source.model, source.root)
            self._install(source.key, self._around(source, own), own)

    def _install(self, key: str, prompts: PromptSource, own: PromptSource) -> None:
        """`own` is what `prompts` are made of."""
        before = self._prompts[key]
        is_new = before is not prompts or not isinstance(own, NoPrompts)
        self._replace(key, prompts)
        self._settled = self._settled or not self.is_loading
        if is_new:
            self._on_loaded(key)

    def _proof(self, engine: Engine, model: str) -> ProbeState | None:
        return engine.proofs.get(self.subject(engine, model)) if engine.proofs else None

    def _pooling(self, name: str, engines: Sequence[Engine]) -> PoolingFacts:
        proofs = [self._proof(engine, name) for engine in engines]
        found = {NO_POOLING if proof is None else proof.pooling for proof in proofs}
        return found.pop() if len(found) == 1 else NO_POOLING

    def _unfaithful(self, engines: Sequence[Engine], model: str) -> str | None:
        for engine in engines:
            if any(proof.fault for proof in engine.proofs.values()):
                proof = engine.proofs.get(self.subject(engine, model))
                if proof is not None and proof.fault is not None:
                    return self._difference(engine, model, proof.fault)
        return None

    def _difference(self, engine: Engine, model: str, fault: str) -> str:
        ours, theirs = self._sources[model], engine.offers.get(model)
        if theirs is None or theirs.key == ours.key:
            return f"engine {engine.name} renders otherwise than we do: {fault}"
        return (
            f"engine {engine.name} serves another model under this name, {theirs.root!r} and not"
            f" {ours.root!r}: start it with a --served-model-name of its own ({fault})"
        )


def _lora_paths(name: str, engines: Sequence[Engine]) -> Mapping[str | None, frozenset[HolderId]]:
    """Where they have an adapter from, the place of most of them first."""
    found: dict[str | None, set[HolderId]] = {}
    for engine in engines:
        holders = found.setdefault(engine.adapter_path(name), set())
        holders.update(endpoint.holder for endpoint in engine.endpoints)
    places = sorted(found, key=lambda path: (-len(found[path]), path or ""))
    return {path: frozenset(found[path]) for path in places}


def version_rules(engines: Sequence[Engine]) -> VersionRules:
    """Return the rules for prompts that these engines have in common."""
    return VersionRules.of([engine.facts.vllm_version for engine in engines if engine.facts])


def _contexts(engines: Sequence[Engine]) -> ContextLengths:
    lengths = [engine.max_model_len for engine in engines]
    told = {length for length in lengths if length is not None}
    least, most = min(told, default=None), max(told, default=None)
    if len(set(lengths)) == 1:
        return ContextLengths(least, most)
    each = zip(engines, lengths, strict=True)
    by_engine = {engine.name: length for engine, length in each if length is not None}
    return ContextLengths(least, None if None in lengths else most, by_engine)


# of a model whose requests are a 503: no reason that one is routed by
_NOT_SERVED = {"reason": "no-engine", "why": "no engine that serves it answers"}

_BY_LOAD = {"reason": Reason.LOAD_ONLY, "why": "scoring is switched off"}


def _is_loading(prompts: PromptSource) -> TypeGuard[NoPrompts]:
    return isinstance(prompts, NoPrompts) and prompts.reason is Reason.TOKENIZER_LOADING


def _routed_by(served: ServedModel) -> dict[str, Any]:
    if not served.cuts:
        why = "its engines have not told their block size; give --engine URL,block_size=N"
        return {"reason": Reason.NO_BLOCK_SIZE, "why": why}
    if isinstance(served.prompts, RemotePrompts) and served.unfaithful is None:
        return served.prompts.report()
    if isinstance(served.prompts, NoPrompts):
        return {"reason": served.prompts.reason, "why": served.prompts.why}
    if served.unfaithful is not None:
        return {"reason": Reason.UNFAITHFUL, "why": served.unfaithful}
    return made_here(served.prompts)
