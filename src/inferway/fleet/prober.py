"""Proves that engines render what we render, by asking them (prompts/fidelity.py: what, why).

an engine joins, or is back     every probe, one after the other; a few engines at a time
its ids differ                  its models go by load only; asked again every RECHECK_SECONDS
it gives no verdict             unproven, which changes nothing; asked again, ever more seldom
it cannot give one (too old)    unproven; asked again when it is back from somewhere
it answers no chats             the same, and asked what it makes of texts that it compares
it counts messages otherwise    its models' messages go by load only; asked again as above
a live prompt's ids differ      its models go by load only, until LIVE_AGREEMENTS live prompts
                                in a row agree: one odd request must not cost the others much

Whatever differs is asked again before it counts: templates that show the time may have been
rendered on both sides of a tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from inferway.config import ProbeSettings
from inferway.errors import UpstreamError, crash_report
from inferway.fleet.engine import Engine, ProbeState, ProofState
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_token_ids import PROBE_SECONDS, NoTokenIdsError, ask
from inferway.fleet.pooling_probe import pooling_facts
from inferway.model import Endpoint, Headers, TokenIds
from inferway.openai_api.kinds import COUNT_TOKENS
from inferway.openai_api.read_body import CountsMessages
from inferway.prompts.fidelity import (
    BODIES,
    PROBES,
    Difference,
    FlagFinding,
    JsonObject,
    NotRendered,
    Outcome,
    Probe,
    compare,
    find,
    live_copy,
    live_kind,
    live_words,
    our_count,
    our_outcome,
)
from inferway.prompts.scoring_input import NO_POOLING
from inferway.prompts.served import LocalPrompts, PromptSource, ServedModel
from inferway_structured.decoding import UNREADABLE

log = logging.getLogger("inferway.probe")

ENGINES_AT_ONCE = 16  # each of them answers one probe at a time
ATTEMPTS = 3
RETRY_SECONDS, MAX_RETRY_SECONDS = 30.0, 900.0
RECHECK_SECONDS = 300.0
LIVE_AGREEMENTS = 20


@dataclass(frozen=True, slots=True)
class LivePrompt:
    """A client's request that `endpoint` has answered. `ids`: what it was routed on, None if it
    was not rendered."""

    model: ServedModel
    endpoint: Endpoint
    path: str
    fields: JsonObject
    ids: Sequence[TokenIds] | None


class _Subject(NamedTuple):
    """A model of an engine, and what was found out about it."""

    engine: Engine
    model: str
    proof: ProbeState


class Prober:
    """Writes `engine.proofs`. `subject(engine, model)` is the base model under whose name the
    engine is asked for `model`; `changed` is called when engines' faults have come or gone;
    `sends_ids`: engines get the ids of their prompts (tokens_once). `open` it; `stop` it when a
    shutdown begins, before running answers end; then `close` it."""

    def __init__(
        self,
        settings: ProbeSettings,
        engines: Mapping[str, Engine],
        client: EngineClient,
        subject: Callable[[Engine, str], str],
        changed: Callable[[], None],
        *,
        retry_seconds: float = RETRY_SECONDS,
        recheck_seconds: float = RECHECK_SECONDS,
        sends_ids: bool = False,
    ) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()  # (join or live, state) -> how often
        self.one_in = settings.one_in
        self._joins = settings.join
        self._engines = engines
        self.subject = subject
        self._sends_ids = sends_ids
        self.differed: set[str] = set()  # models of which a live prompt has ever differed
        self._changed = changed
        self._retry_seconds = retry_seconds
        self._recheck_seconds = recheck_seconds
        self._client = client
        self._is_open = False
        self._free = asyncio.Semaphore(ENGINES_AT_ONCE)
        self._strays: set[tuple[str, str]] = set()  # (engine, model) where a live prompt differed
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.asking: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        self._is_open = True

    def stop(self) -> None:
        """Ask no more, not even for the end of what is being asked."""
        self._is_open = False
        for task in self.asking:
            task.cancel()

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(*self.asking, return_exceptions=True)

    # engines that join

    def join(self, engine: Engine, model: str, prompts: PromptSource) -> None:
        """Probe an engine that is there, or there again: it may have been started with other
        flags."""
        self.leave(engine, model)
        if not (self._is_open and self._joins):
            return
        subject = _Subject(engine, model, engine.proofs.setdefault(model, ProbeState()))
        if subject.proof.state is not ProofState.DIFFERS:
            subject.proof.state, subject.proof.why = ProofState.UNPROVEN, "it is being asked"
        self._running[engine.name, model] = self._spawn(self._prove_until_told(subject, prompts))

    def leave(self, engine: Engine, model: str) -> None:
        """Stop probing an engine that is gone."""
        task = self._running.pop((engine.name, model), None)
        if task is not None:
            task.cancel()

    def forget_others(self, engine: Engine, models: Collection[str]) -> None:
        """Forget what was found out about other models than these, which the engine serves now."""
        for model in [model for model in engine.proofs if model not in models]:
            self.leave(engine, model)
            del engine.proofs[model]
            self._strays.discard((engine.name, model))

    async def _prove_until_told(self, subject: _Subject, prompts: PromptSource) -> None:
        retry, proof = self._retry_seconds, subject.proof
        if proof.pooling != NO_POOLING:
            proof.pooling = NO_POOLING
            self._changed()
        while True:
            async with self._free:
                may_change = await self._prove(subject, prompts)
            differs = ProofState.DIFFERS in (proof.state, proof.messages)
            if not may_change or (proof.state is ProofState.AGREES and not differs):
                return
            await asyncio.sleep(self._recheck_seconds if differs else retry)
            retry = retry if differs else min(2 * retry, MAX_RETRY_SECONDS)

    async def _prove(self, subject: _Subject, prompts: PromptSource) -> bool:
        """Ask once. Return whether it makes sense to ask again."""
        try:
            answers, differences = await self._ask_all(subject, prompts)
            finding = None
            if differences:
                finding = await find(subject.model, prompts.local, answers, differences)
        except UpstreamError as e:
            self._unproven(subject, str(e))
            if isinstance(e, NoTokenIdsError):
                return await self._ask_pooling(subject, prompts.local)
            return True
        except Exception as e:
            words = "engine %s could not be probed, by a fault of the gateway: %s"
            log.error(words, subject.engine.name, crash_report(e))
            self._unproven(subject, "a fault of ours; it is in the log")
            return False
        before = subject.proof.fault
        if finding is not None:
            self._differs(subject, finding)
            self._settle(subject, before)
            return True
        self._agrees(subject)
        self._settle(subject, before)
        if prompts.local is not None:
            await self._prove_messages(subject, prompts.local)
        return True

    async def _ask_pooling(self, subject: _Subject, prompts: LocalPrompts | None) -> bool:
        """Ask an engine that makes no answers what it makes of prompts instead. Return whether it
        makes sense to ask again."""
        engine, model, proof = subject
        if prompts is None:
            return False
        try:
            found = await pooling_facts(self._client, engine, model, prompts)
        except UpstreamError:
            return True
        if proof.pooling != found:
            proof.pooling = found
            self._changed()
        return False

    async def _prove_messages(self, subject: _Subject, prompts: CountsMessages) -> None:
        (engine, model, proof), before = subject, subject.proof.messages
        found = await prove_messages(self._client, engine, model, prompts)
        proof.messages, proof.messages_why = found
        if proof.messages is before:
            return
        if proof.messages is ProofState.DIFFERS:
            log.warning(
                "messages to model %r go by load only: engine %s renders others than we do: %s;"
                " start it with vLLM 0.32, and without --anthropic-disabled-thinking-effort",
                *(model, engine.name, proof.messages_why),
            )
        self._changed()

    def _agrees(self, subject: _Subject) -> None:
        engine, model, proof = subject
        self.counts["join", ProofState.AGREES] += 1
        if proof.fault is not None:
            log.info("model %r is rendered by engine %s as by the gateway, now", model, engine.name)
        proof.state, proof.why, proof.live = ProofState.AGREES, "", None
        proof.told = set()

    def _differs(self, subject: _Subject, finding: FlagFinding) -> None:
        engine, model, proof = subject
        self.counts["join", ProofState.DIFFERS] += 1
        proof.state, proof.why, proof.live = ProofState.DIFFERS, finding.words, None
        if finding.kind in proof.told:
            return
        proof.told = {finding.kind}
        log.warning(
            "model %r goes by load only: engine %s renders other prompts than we do. %s. "
            "First difference: %s",
            *(model, engine.name, finding.words, finding.evidence),
        )

    def _unproven(self, subject: _Subject, why: str) -> None:
        """There is no verdict; one that it differs stands until another comes."""
        engine, model, proof = subject
        self.counts["join", ProofState.UNPROVEN] += 1
        if proof.state is ProofState.DIFFERS:
            return
        proof.state, proof.why = ProofState.UNPROVEN, why
        if why not in proof.told:
            proof.told = {why}
            words = "of model %r it is unproven how engine %s renders: %s"
            log.info(words, model, engine.name, why)

    async def _ask_all(
        self, subject: _Subject, prompts: PromptSource
    ) -> tuple[dict[str, Outcome], dict[str, Difference]]:
        """Return the engine's answers by probe, and which of them are not ours. Raises
        UpstreamError."""
        answers: dict[str, Outcome] = {}
        differences: dict[str, Difference] = {}
        for probe in PROBES:
            answer = await self._ask_one(subject, prompts, probe)
            if answer is None:
                continue
            answers[probe.name], difference = answer
            if difference is not None:
                differences[probe.name] = difference
        if not answers:
            raise NoTokenIdsError("none of its prompts are rendered here")
        refused = [answer for answer in answers.values() if isinstance(answer, NotRendered)]
        if differences and len(refused) == len(answers):
            raise UpstreamError(f"it refuses every probe: {refused[0].why}")
        return answers, differences

    async def _ask_one(
        self, subject: _Subject, prompts: PromptSource, probe: Probe
    ) -> tuple[Outcome, Difference | None] | None:
        """Return None if the probe is not ours to render."""
        engine, body = subject.engine, probe.body(subject.model)
        attempts = ATTEMPTS
        while True:
            attempts -= 1
            ours = await our_outcome(prompts, probe.path, body)
            if ours is None:
                return None
            theirs = await self._ask(engine.url, engine.headers, probe.path, body)
            if not isinstance(theirs, NotRendered):
                engine.probed.extend(theirs)  # it holds them now
            difference = compare(ours, theirs)
            if difference is None or not attempts:
                return theirs, difference

    async def _ask(self, url: str, headers: Headers, path: str, body: JsonObject) -> Outcome:
        if not self._is_open:
            raise UpstreamError("the gateway is shutting down")
        return await ask(self._client, url, headers, path, body)

    # live prompts

    def may_ask(self, endpoint: Endpoint) -> bool:
        """Return whether a live prompt may be sent there a second time, because nobody has to wait
        for it."""
        engine = self._engines[endpoint.engine]
        is_well = engine.healthy and engine.suspension is None
        return self._is_open and is_well and engine.load["waiting"] == 0

    @property
    def any_stray(self) -> bool:
        """True if a model is routed by load only because of a live prompt."""
        return bool(self._strays)

    def strayed(self, model: ServedModel, endpoint: Endpoint) -> bool:
        """Return whether a live prompt of this model differed there."""
        return (endpoint.engine, self._subject_at(endpoint, model)) in self._strays

    def sample(self, live: LivePrompt, done: Callable[[], None]) -> None:
        """Compare a live prompt's ids with those of the engine that has answered it. `done` is
        called when it is over, whatever comes of it."""
        self._spawn(self._sample(live)).add_done_callback(lambda _: done())

    async def _sample(self, live: LivePrompt) -> None:
        engine = self._engines[live.endpoint.engine]
        model = self._subject_at(live.endpoint, live.model)
        try:
            difference = await self._compare_live(engine, live)
        except UpstreamError:
            self.counts["live", ProofState.UNPROVEN] += 1
            return
        subject = _Subject(engine, model, engine.proofs.setdefault(model, ProbeState()))
        before = subject.proof.fault
        if difference is None:
            self._live_agrees(subject)
        else:
            self._live_differs(subject, live, difference)
        self._settle(subject, before)

    async def _compare_live(self, engine: Engine, live: LivePrompt) -> Difference | None:
        """Raises UpstreamError if there is no verdict."""
        body = live_copy(live.fields)
        if body is None:
            raise NoTokenIdsError("a copy would tell nothing")
        ours: Outcome | None = live.ids
        attempts = ATTEMPTS
        while True:
            attempts -= 1
            if ours is None:
                ours = await our_outcome(live.model.prompts, live.path, body)
            if ours is None or isinstance(ours, NotRendered):
                raise NoTokenIdsError("not rendered here")
            theirs = await self._ask(engine.url, live.endpoint.headers, live.path, body)
            if isinstance(theirs, NotRendered):
                raise NoTokenIdsError("refused there")
            difference = compare(ours, theirs)
            if difference is None or not attempts:
                return difference
            ours = None  # rendered anew: it may be the clock

    def _live_differs(self, subject: _Subject, live: LivePrompt, difference: Difference) -> None:
        engine, model, proof = subject
        self.counts["live", ProofState.DIFFERS] += 1
        if self._sends_ids and model not in self.differed:  # ids not the engine's: another prompt
            log.warning(
                "model %r: engines get no token ids of its prompts until the gateway is started"
                " anew, because engine %s has rendered a live one otherwise (tokens_once)",
                *(model, engine.name),
            )
        self.differed.add(model)
        words = live_words(live.path, live.fields, difference)
        proof.live, proof.live_left = f"a live prompt differs: {words}", LIVE_AGREEMENTS
        kind = live_kind(live.path, live.fields)
        if kind in proof.live_told:
            return
        proof.live_told.add(kind)
        log.warning(
            "model %r goes by load only until %d live prompts in a row agree: engine %s has "
            "rendered one otherwise than we did: %s",
            *(model, LIVE_AGREEMENTS, engine.name, words),
        )

    def _live_agrees(self, subject: _Subject) -> None:
        engine, model, proof = subject
        self.counts["live", ProofState.AGREES] += 1
        if proof.live is None:
            return
        proof.live_left -= 1
        if proof.live_left == 0:
            proof.live = None
            words = "live prompts of model %r are rendered by engine %s as by the gateway"
            log.info(words, model, engine.name)

    # both

    def _subject_at(self, endpoint: Endpoint, model: ServedModel) -> str:
        return self.subject(self._engines[endpoint.engine], model.name)

    def _settle(self, subject: _Subject, before: str | None) -> None:
        """A verdict is in; what was known before may hold no longer."""
        key = subject.engine.name, subject.model
        (self._strays.discard if subject.proof.live is None else self._strays.add)(key)
        if subject.proof.fault != before:
            self._changed()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self.asking.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.asking.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "a live prompt could not be compared, by a fault of the gateway: %s",
                crash_report(error),
            )


class _Count(msgspec.Struct):
    input_tokens: int


async def prove_messages(
    client: EngineClient, engine: Engine, model: str, prompts: CountsMessages
) -> tuple[ProofState, str]:
    """Return whether all counts are the same, and if not, the first difference. An engine that does
    not count, or refuses what is asked, proves nothing."""
    found = ProofState.UNPROVEN
    for i, fields in enumerate(BODIES):
        body = {"model": model, **fields}
        try:
            ours, theirs = await _counts(client, engine, prompts, body)
        except UpstreamError:
            return ProofState.UNPROVEN, ""
        if ours is None or theirs is None:
            continue
        if ours != theirs:
            return ProofState.DIFFERS, f"in probe {i + 1} it counts {theirs} tokens, and we {ours}"
        found = ProofState.AGREES
    return found, ""


async def _counts(
    client: EngineClient,
    engine: Engine,
    prompts: CountsMessages,
    body: Mapping[str, Any],
) -> tuple[int | None, int | None]:
    """Ours and the engine's, asked again if they differ."""
    for _ in range(ATTEMPTS):
        ours = await our_count(prompts, body)
        theirs = None if ours is None else await _asked(client, engine, body)
        if ours is None or theirs is None or ours == theirs:
            break
    return ours, theirs


async def _asked(client: EngineClient, engine: Engine, body: Mapping[str, Any]) -> int | None:
    """None if the engine refuses it. Raises UpstreamError."""
    raw_body = msgspec.json.encode(body)
    status, raw = await client.post(
        engine.url, COUNT_TOKENS, raw_body, engine.headers, PROBE_SECONDS
    )
    if status in (400, 422):
        return None
    if status != 200:
        raise UpstreamError(f"{COUNT_TOKENS} answered {status}")
    try:
        return msgspec.json.decode(raw, type=_Count).input_tokens
    except UNREADABLE as e:
        raise UpstreamError(f"{COUNT_TOKENS}: its answer cannot be read") from e
