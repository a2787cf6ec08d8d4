"""The engine core's side: what compiles, and one grammar for each request.

vLLM makes its StructuredOutputManager in the engine core and has it build a backend with the
first structured request; ours stands there before, takes every kind, and is never exchanged.
"""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from inferway_structured.backends.answer_state import OF_THE_SHAPE
from inferway_structured.errors import (
    CompileError,
    InferwayError,
    QuarantinedError,
    SaturatedError,
    SpecError,
    panic_as_error,
)
from inferway_structured.spec import Spec, from_vllm, unpacked
from inferway_structured.vllm.adapter import RequestGrammar
from inferway_structured.vllm.fit import switch_threads_sooner
from inferway_structured.vllm.settings import Settings, settings_of

if TYPE_CHECKING:
    from inferway_structured.grammar import Compiled

log = logging.getLogger("vllm.inferway")

BACKEND = "inferway"

MAX_REMEMBERED = 256  # requests that have ended as errors

UTILITY = "inferway_structured"  # the engine core's method that API servers call


class EngineCoreSide:
    """Stands in the place of vLLM's StructuredOutputBackend, whose shape it has."""

    def __init__(self, vllm_config: Any, tokenizer: Any, settings: Settings) -> None:
        """Raises ConfigError for a tokenizer that no library here can use."""
        from inferway_structured.backends.cascade import Cascade
        from inferway_structured.backends.stepped import Steppers
        from inferway_structured.backends.vocabulary import Vocabulary
        from inferway_structured.compile.compilations import Compilations, CompileLimits
        from inferway_structured.compile.compile_trial import trial_jobs

        self.settings = settings
        size = vllm_config.model_config.get_vocab_size()
        self.vocabulary = Vocabulary.of(tokenizer, size)
        _ = self.vocabulary.ll_tokenizer  # a second: now, not with the first request
        self._config = vllm_config.structured_outputs_config
        self._steppers = Steppers(self.vocabulary)
        cascade = Cascade(self.vocabulary, self._steppers)
        limits, delay = CompileLimits(), settings.compile_delay_seconds

        def compile_light(spec: Spec) -> Compiled:
            """Compile a spec here, unless it may take long: a child compiles that first."""
            if delay:
                sleep(delay)
            return cascade.compile_light(spec)

        self._manager = Compilations(
            compile_light,
            replace(limits, build_seconds=limits.build_seconds + delay),
            trials=trial_jobs(cascade),
        )
        self.counts = self._manager.counts
        self._coming: dict[str, Future[Any]] = {}  # what each request waits for, by its id
        self._ended: OrderedDict[str, dict[str, Any]] = OrderedDict()  # requests, and why
        self.overlap: Any = None  # overlap.Overlap, from the first request on

    def begin(self, request: Any, may_wait: bool = True) -> Future[RequestGrammar]:
        """Return a future of the grammar of vLLM's `request`: done when it is compiled and, if it
        `may_wait`, there is room for one more answer. Never raises."""
        grammar: Future[RequestGrammar] = Future()
        try:
            params = request.sampling_params.structured_outputs
            key = str(getattr(params, "_backend", "")).partition(":")[2]  # as `mark` has it
            compiling = self._manager.known(key)
            if compiling is None:
                compiling = self._manager.compile(self.spec_of(params))
        except BaseException as raised:
            e = panic_as_error(raised)
            self._remember(request.request_id, e)
            grammar.set_exception(e)
            return grammar
        began = monotonic()
        self._coming[request.request_id] = compiling

        def done(compiled: Future[Compiled]) -> None:
            self.counts.compile_waited_seconds.observe(monotonic() - began)
            self._coming.pop(request.request_id, None)
            if compiled.cancelled():
                return  # and so is the request
            try:
                made = compiled.result()
            except BaseException as e:
                self._fail(request, grammar, panic_as_error(e))
            else:
                self._start(request, grammar, made, may_wait)

        compiling.add_done_callback(done)
        return grammar

    def _start(
        self, request: Any, grammar: Future[RequestGrammar], compiled: Compiled, may_wait: bool
    ) -> None:
        """Begin the answer once there is room for it, if it may wait."""
        if grammar.cancelled():
            return
        stops = frozenset(request.sampling_params.all_stop_token_ids)
        try:
            started = self._started(compiled, stops)
        except BaseException as raised:
            e = panic_as_error(raised)
            if may_wait and isinstance(e, SaturatedError):
                self._coming[request.request_id] = grammar
                again = partial(self._start, request, grammar, compiled, may_wait)
                self._steppers.when_one_ends(again)
            else:
                self._fail(request, grammar, e)
            return
        self._coming.pop(request.request_id, None)
        if grammar.set_running_or_notify_cancel():
            grammar.set_result(started)

    def _fail(self, request: Any, grammar: Future[RequestGrammar], error: Exception) -> None:
        self._remember(request.request_id, error)
        grammar.set_exception(error)

    def cancel(self, request_ids: Iterable[str]) -> None:
        """Drop compiles that no other request waits for: these requests' clients have left."""
        for request_id in request_ids:
            coming = self._coming.pop(request_id, None)
            if coming is not None:
                coming.cancel()

    def spec_of(self, params: Any) -> Spec:
        """Return what a request asks; flags of the engine hold for every request. Raises
        SpecError."""
        return with_flags(from_vllm(params), self._config)

    def _started(self, compiled: Compiled, stops: frozenset[int]) -> RequestGrammar:
        ends = sorted(stops.union(self.vocabulary.eos_token_ids))
        return RequestGrammar(compiled.start(stops), compiled.backend, ends, self._end)

    def _end(self, request_id: str, why: str) -> None:
        self.counts.failed_grammars.add(why)
        self._remember(request_id, _cut_off(why))

    def _remember(self, request_id: str, error: BaseException) -> None:
        """Remember why the request ends, for the API server, which vLLM tells only that it does."""
        ours = isinstance(error, InferwayError)
        log.log(
            logging.INFO if isinstance(error, SpecError) else logging.ERROR,
            "request %s ends with an error, because its grammar cannot be used: %s",
            request_id,
            error if ours else type(error).__name__,
        )
        if ours:
            self._ended[request_id] = _told(error)
            while len(self._ended) > MAX_REMEMBERED:
                self._ended.popitem(last=False)

    def _why(self, external_ids: Sequence[str]) -> dict[str, Any]:
        """The engine core's ids have the server's own in them."""
        for request_id in reversed(list(self._ended)):  # compile threads write it
            if any(external in request_id for external in external_ids):
                return self._ended[request_id]
        return {}

    def judge(self, spec: Spec) -> Future[str]:
        """Return a future of what becomes of a spec, for `front.verdict_of`: it is compiled, as for
        a request."""
        told: Future[str] = Future()
        compiling = self._manager.compile(spec, is_request=False)
        compiling.add_done_callback(lambda done: told.set_result(json.dumps(_verdict(done))))
        return told

    def utility(self, command: str, words: Mapping[str, Any]) -> dict[str, Any]:
        """Return what an API server asks for, at once, between two steps of the engine."""
        if command == "warm":
            return self._warm(unpacked(words))
        if command == "why":
            return self._why(words["requests"])
        return {
            "counts": self._manager.snapshot(),
            "process": os.getpid(),
            "waiting_with_prefill": self.overlap.num_held if self.overlap is not None else 0,
            "held": [
                {name: getattr(held, name) for name in ("key", "backend", "seconds", "num_bytes")}
                for held in self._manager.held_specs()
            ],
        }

    def _warm(self, spec: Spec) -> dict[str, Any]:
        """`compile_ms`: what it took, if it is held already."""
        accepted = self._manager.warm(spec)
        took = {held.key: held.seconds for held in self._manager.held_specs()}
        seconds = took.get(spec.key)
        told = {} if seconds is None else {"compile_ms": round(seconds * 1000, 3)}
        return {"accepted": accepted, **told}

    def allocate_token_bitmask(self, max_num_seqs: int) -> Any:
        import torch

        return torch.full((max_num_seqs, self.vocabulary.num_words), -1, dtype=torch.int32)

    def destroy(self) -> None:
        self._manager.close()
        self._steppers.close()


def _verdict(compiling: Future[Compiled]) -> dict[str, Any]:
    try:
        compiled = compiling.result()
    except BaseException as raised:
        return _told(panic_as_error(raised))
    left = [(each.place, each.keyword) for each in compiled.unenforced]
    return {"backend": compiled.backend, "unenforced": left}


def _told(error: BaseException) -> dict[str, Any]:
    """Return an error for an API server, which raises it again."""
    if not isinstance(error, InferwayError):
        return {"status": 500, "message": f"a grammar library failed: {type(error).__name__}"}
    words = {name: getattr(error, name, None) for name in ("place", "keyword")}
    killed = isinstance(error, QuarantinedError)
    status = getattr(error, "status", 500)
    return {"status": status, "message": str(error), **words, "killed": killed}


def _cut_off(why: str) -> InferwayError:
    words = f"the answer was cut off, because its grammar failed: {why}"
    if why in OF_THE_SHAPE:
        return SpecError(f"{words}; simplify the shape that is asked for")
    return CompileError(f"{words}; try again")


def utility(engine_core: Any, command: str, words: str) -> str | Future[str]:
    """Answer an API server. A method of vLLM's EngineCore: JSON in, JSON out, or a future of it."""
    core = core_of(engine_core.structured_output_manager)
    if core is None:
        raise RuntimeError(
            f"the engine core in process {os.getpid()} uses vLLM's own structured output; its log "
            "at the start says why"
        )
    given = json.loads(words)
    if command == "judge":
        return core.judge(unpacked(given))
    return json.dumps(core.utility(command, given))


def mark(params: Any, key: str) -> None:
    """Say in vLLM's StructuredOutputsParams that the request is ours, and the key of its spec: what
    is held need not be read again."""
    params._backend = f"{BACKEND}:{key}"


def with_flags(spec: Spec, config: Any) -> Spec:
    """Return the spec with the flags of `config`, the engine's StructuredOutputsConfig."""
    options = replace(
        spec.options,
        any_whitespace=spec.options.any_whitespace and not config.disable_any_whitespace,
        additional_properties=(
            spec.options.additional_properties and not config.disable_additional_properties
        ),
    )
    return replace(spec, options=options)


def core_of(manager: Any) -> EngineCoreSide | None:
    """Return our core; None if the manager is vLLM's own."""
    return manager.backend if isinstance(manager.backend, EngineCoreSide) else None


def take_over(manager: Any, vllm_config: Any) -> None:
    """Put our core into `manager`, vLLM's StructuredOutputManager, just made. Where this fails, it
    stays vLLM's."""
    if vllm_config.model_config.skip_tokenizer_init:
        return  # such an engine refuses structured requests itself
    began = monotonic()
    try:
        manager.backend = EngineCoreSide(vllm_config, manager.tokenizer, settings_of(vllm_config))
    except Exception:
        log.exception(
            "the engine core in process %d uses vLLM's own structured output, because Inferway's "
            "could not be set up",
            os.getpid(),
        )
        return
    switch_threads_sooner()
    seconds = monotonic() - began
    log.info(
        "the engine core in process %d uses Inferway's structured output, set up in %.1f s",
        os.getpid(),
        seconds,
    )


def begin(manager: Any, request: Any) -> bool:
    """Begin a request in the place of StructuredOutputManager.grammar_init. Return False if the
    manager is vLLM's own."""
    if request.structured_output_request is None:
        return True
    core = core_of(manager)
    if core is None:
        _give_back(request.sampling_params.structured_outputs, manager.vllm_config)
        return False
    runs_on = manager._use_async_grammar_compilation
    grammar = core.begin(request, may_wait=runs_on)
    if not runs_on:
        grammar.exception()  # waits: ranks must not see it ready at different steps
    request.structured_output_request.grammar = grammar
    return True


def _give_back(params: Any, vllm_config: Any) -> None:
    """Give the request to the backend that vLLM would have chosen first."""
    configured = vllm_config.structured_outputs_config.backend
    params._backend = "xgrammar" if configured == "auto" else configured
