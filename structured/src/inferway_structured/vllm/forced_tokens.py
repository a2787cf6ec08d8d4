"""Jump-forward: what the grammar leaves no choice about is given to the engine as drafts, where
speculative decoding is configured. Every draft is accepted, because its mask lets nothing else
through; a step then writes several tokens.

Only where drafts are known before the step (not with asynchronous scheduling, where the model has
its own drafts on the device before the grammar is asked).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inferway_structured.errors import panic_as_error
from inferway_structured.vllm.adapter import RequestGrammar
from inferway_structured.vllm.core import EngineCoreSide, core_of
from inferway_structured.vllm.fit import Patch

log = logging.getLogger("vllm.inferway")

Function = Callable[..., Any]

_MANAGER = "vllm.v1.structured_output"


def patches() -> list[Patch]:
    return [
        Patch(
            _MANAGER,
            "StructuredOutputManager.validate_tokens",
            ("self", "request", "spec_tokens"),
            _validate_tokens,
        ),
        Patch(
            _MANAGER,
            "StructuredOutputManager._get_constraint_bounds",
            ("self", "request", "spec_tokens"),
            None,  # what it gives is used here
        ),
    ]


def _validate_tokens(original: Function) -> Function:
    def validate_tokens(self: Any, request: Any, spec_tokens: list[int]) -> list[int]:
        valid: list[int] = original(self, request, spec_tokens)
        core = core_of(self)
        if core is None or not request.use_structured_output:
            return valid
        try:
            must = forced(self, core, request)
        except BaseException as raised:  # here it would end the engine
            error = panic_as_error(raised)
            core.settings = replace(core.settings, jump_forward=False)
            log.error(
                "process %d no longer proposes forced tokens as drafts (jump_forward), because "
                "finding them failed",
                os.getpid(),
                exc_info=error,
            )
            return valid
        return must if len(must) > len(valid) else valid

    return validate_tokens


def forced(manager: Any, core: EngineCoreSide, request: Any) -> list[int]:
    """Return what must come next, as many tokens as one step takes; none where that is not known in
    time."""
    config = manager.vllm_config
    if not core.settings.jump_forward or config.speculative_config is None:
        return []
    if config.scheduler_config.async_scheduling:
        return []
    grammar = request.structured_output_request.grammar
    if not isinstance(grammar, RequestGrammar) or grammar.is_terminated():
        return []
    if manager._get_constraint_bounds(request, ()).constraint_start > 0:
        return []
    must = list(grammar.forced()[: config.speculative_config.num_speculative_tokens])
    core.counts.forced_tokens.add(by=len(must))
    return must
