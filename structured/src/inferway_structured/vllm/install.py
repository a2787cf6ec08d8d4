"""The patches of vLLM. Those that structured output cannot do without are applied all or none; each
of the other features by itself."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from inferway_structured.errors import InferwayError, RequestError
from inferway_structured.vllm.fit import (
    Feature,
    Patch,
    misfits,
    switch_threads_sooner,
    vllm_version,
)
from inferway_structured.vllm.settings import is_required

if TYPE_CHECKING:
    from inferway_structured.vllm.front import ApiServerSide

log = logging.getLogger("vllm.inferway")

Function = Callable[..., Any]

_MANAGER = "vllm.v1.structured_output"

OLDEST, NEWEST = (0, 28), (0, 33)  # of vLLM, with which the plugin is tested

_NOT_INSTALLED = (
    "process %d uses vLLM's own structured output, because Inferway's plugin could not be installed"
)
_NO_HEADERS = (
    "answers have no x-inferway headers, and /v1/structured/{warm,stats,explain} are missing, "
    "because "
)

# Where an API server gets its app from, newest vLLM first.
BUILD_APP = ("vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server")


def install() -> str | None:
    """Install all patches in a process that serves, those of the engine core too if that runs in
    it. To do it twice changes nothing. Return None if it is done, else why nothing was, which the
    log has, too, unless vLLM ends for it. Never raises."""
    try:
        from inferway_structured.vllm.front import ApiServerSide

        front = ApiServerSide()
        if why := _apply_all([*core_patches(), *front_patches(front)]):
            if not is_required():
                log.warning("all processes use vLLM's own structured output, because %s", why)
            return why
        _apply_optional(optional_features(), log.warning)
        _say_if_newer()
        _serve(front)
        switch_threads_sooner()
    except Exception as e:
        log.exception(_NOT_INSTALLED, os.getpid())
        return f"Inferway's plugin could not be installed ({type(e).__name__}: {e})"
    return None


def install_core() -> None:
    """Install the patches of the engine core. To do it twice changes nothing. What is missing was
    said where it was started."""
    from inferway_structured.vllm import core

    if why := _apply_all(core_patches()):
        log.warning("process %d uses vLLM's own structured output, because %s", os.getpid(), why)
        return
    engine_core = sys.modules["vllm.v1.engine.core"]
    setattr(engine_core.EngineCore, core.UTILITY, core.utility)
    _apply_optional(optional_features(), log.debug)


def optional_features() -> list[Feature]:
    """Return the features that structured output works without, each by itself."""
    from inferway_structured.vllm import forced_tokens as drafts
    from inferway_structured.vllm import overlap

    masks = Patch(_MANAGER, "StructuredOutputManager.grammar_bitmask", None, _measured_masks)
    parameters = ("self", "request_ids")
    abort = Patch("vllm.v1.engine.core", "EngineCore.abort_requests", parameters, _abort)
    return [
        Feature("dropping compilations whose clients have left", [abort]),
        Feature("computing prompts while their grammars compile (overlap)", overlap.patches()),
        Feature("proposing forced tokens as drafts (jump_forward)", drafts.patches()),
        Feature(
            "measuring how long masks take (mask_fill_seconds)",
            [masks],
        ),
    ]


def server_features() -> list[Feature]:
    """Return the optional features of an API server alone."""
    from inferway_structured.vllm import calls

    return [Feature("the schemas of tools that are required and not strict", calls.patches())]


def _apply_optional(features: Sequence[Feature], say: Callable[..., None]) -> None:
    for feature in features:
        if why := misfits(feature.patches):
            say(
                "Inferway's structured output works without %s, because this vLLM differs: %s; "
                "the plugin is tested with vLLM %s",
                feature.name,
                "; ".join(why),
                _tested(),
            )
            continue
        for patch in feature.patches:
            patch.apply()


def _apply_all(patches: Sequence[Patch]) -> str | None:
    """Apply all patches, or none. Return why none was; None if they are applied."""
    why = misfits(patches)
    if vllm_version() < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        why.append(f"before {oldest}, an error of a grammar would end the engine core")
    if why:
        return (
            f"Inferway's plugin does not fit this vLLM: {'; '.join(why)}; use vLLM {_tested()}, "
            "with which the plugin is tested"
        )
    for patch in patches:
        patch.apply()
    return None


def _say_if_newer() -> None:
    if vllm_version() > NEWEST:
        log.warning(
            "this vLLM is newer than those with which Inferway's structured output is tested "
            "(%s); its functions are the same",
            _tested(),
        )


def _tested() -> str:
    return " to ".join(".".join(map(str, version)) for version in (OLDEST, NEWEST))


def core_patches() -> list[Patch]:
    manager = "StructuredOutputManager"
    return [
        Patch(_MANAGER, f"{manager}.__init__", ("self", "vllm_config"), _manager_init),
        Patch(_MANAGER, f"{manager}.grammar_init", ("self", "request"), _grammar_init),
    ]


def _manager_init(original: Function) -> Function:
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, vllm_config, *args, **kwargs)
        try:
            _be_vllms_own()
        except Exception:
            log.exception(_NOT_INSTALLED, os.getpid())
            return
        from inferway_structured.vllm import core

        core.take_over(self, vllm_config)

    return __init__


def _be_vllms_own() -> None:
    """Satisfy vLLM's assertions of what a grammar and a backend are: its classes are ABCs."""
    from vllm.v1.structured_output import backend_types

    from inferway_structured.vllm.adapter import RequestGrammar
    from inferway_structured.vllm.core import EngineCoreSide

    backend_types.StructuredOutputGrammar.register(RequestGrammar)
    backend_types.StructuredOutputBackend.register(EngineCoreSide)


def _grammar_init(original: Function) -> Function:
    def grammar_init(self: Any, request: Any) -> None:
        from inferway_structured.vllm import core

        if not core.begin(self, request):
            original(self, request)

    return grammar_init


def _abort(original: Function) -> Function:
    from inferway_structured.vllm.core import core_of

    def abort_requests(self: Any, request_ids: Sequence[str]) -> Any:
        core = core_of(self.structured_output_manager)
        if core is not None:
            core.cancel(request_ids)
        return original(self, request_ids)

    return abort_requests


def _measured_masks(original: Function) -> Function:
    """Measures all rows of a step, as vLLM has them filled."""
    from inferway_structured.vllm.core import core_of

    def grammar_bitmask(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = perf_counter()
        rows = original(self, *args, **kwargs)
        core = core_of(self)
        if core is not None and rows is not None:
            core.counts.mask_fill_seconds.observe(perf_counter() - began)
        return rows

    return grammar_bitmask


def front_patches(front: ApiServerSide) -> list[Patch]:
    def validate(original: Function) -> Function:
        def _validate_structured_outputs(
            self: Any, model_config: Any, structured_outputs_config: Any, tokenizer: Any
        ) -> None:
            asked = self.structured_outputs
            if structured_outputs_config is None or asked is None:
                return
            if getattr(model_config, "is_diffusion", False) or tokenizer is None:
                original(self, model_config, structured_outputs_config, tokenizer)  # refuses it
            try:
                front.require(asked, structured_outputs_config)
            except InferwayError as e:
                raise _as_vllm(e) from None

        return _validate_structured_outputs

    def add_request(original: Function) -> Function:
        async def add_request(
            self: Any, request_id: Any, prompt: Any, params: Any, *args: Any, **kwargs: Any
        ) -> Any:
            asked = getattr(params, "structured_outputs", None)
            if asked is not None:
                try:
                    config = self.vllm_config.structured_outputs_config
                    await front.examine_params(request_id, asked, config)
                except InferwayError as e:
                    raise _as_vllm(e) from None
            return await original(self, request_id, prompt, params, *args, **kwargs)

        return add_request

    return [
        Patch(
            "vllm.sampling_params",
            "SamplingParams._validate_structured_outputs",
            ("self", "model_config", "structured_outputs_config", "tokenizer"),
            validate,
        ),
        Patch(
            "vllm.v1.engine.async_llm",
            "AsyncLLM.add_request",
            ("self", "request_id", "prompt", "params"),
            add_request,
        ),
    ]


def _as_vllm(error: InferwayError) -> Exception:
    from vllm import exceptions

    if isinstance(error, RequestError) and error.status == 400:
        invalid: Exception = exceptions.VLLMValidationError(str(error), parameter=error.param)
        return invalid
    retry = getattr(exceptions, "RetryableRequestError", exceptions.VLLMValidationError)
    busy: Exception = retry(str(error))
    return busy


def _serve(front: ApiServerSide) -> None:
    """The middleware and the endpoints, where this process is an API server."""
    module = next((name for name in BUILD_APP if name in sys.modules), None)
    if module is None:
        return
    _apply_optional(server_features(), log.warning)
    patch = Patch(module, "build_app", ("args",), lambda original: _build_app(original, front))
    if why := patch.misfit():
        log.warning(_NO_HEADERS + "this vLLM differs: %s", why)
    else:
        patch.apply()


def _build_app(original: Function, front: ApiServerSide) -> Function:
    def build_app(*args: Any, **kwargs: Any) -> Any:
        app = original(*args, **kwargs)
        try:
            _add_middleware(app, front)
        except Exception:
            log.exception(_NO_HEADERS + "the middleware could not be added")
        return app

    return build_app


def _add_middleware(app: Any, front: ApiServerSide) -> None:
    from starlette.middleware import Middleware as Entry

    from inferway_structured.vllm.http import Middleware
    from inferway_structured.vllm.metrics import registered

    # The last is the innermost: behind vLLM's key check.
    app.user_middleware.append(Entry(Middleware, front=front, collector=registered(front)))
    if app.middleware_stack is not None:  # built already: hosting standards do so
        app.middleware_stack = app.build_middleware_stack()
