"""All masks of a step in one call, which drops the GIL once: row by row, each fill would wait for
it again beside a busy thread (measured: 16 to 37 ms for 32 rows, 5 to 7 in one call).

Rows stand as vLLM 0.28 to 0.32 lay them out: a request's drafts one after the other, then the row
of the token after them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from inferway.errors import panics_as_errors
from inferway.structured.vllm.adapter import RequestGrammar
from inferway.structured.vllm.core import Core, core_of
from inferway.structured.vllm.fit import Patch, vllm_version

if TYPE_CHECKING:
    from inferway.structured.backends.fill import Rows

log = logging.getLogger("vllm.inferway")

Function = Callable[..., Any]

_MANAGER = "vllm.v1.structured_output"
_KNOWN_LAYOUT = ((0, 28), (0, 33))  # from, and before


def patches() -> list[Patch]:
    bounds = ("self", "request", "spec_tokens")
    return [
        Patch(
            _MANAGER,
            "StructuredOutputManager.grammar_bitmask",
            (
                *("self", "requests", "structured_output_request_ids"),
                "scheduled_spec_decode_tokens",
            ),
            _grammar_bitmask,
        ),
        # What it gives is used here.
        Patch(_MANAGER, "StructuredOutputManager._get_constraint_bounds", bounds, None),
    ]


def layout_is_known() -> bool:
    return _KNOWN_LAYOUT[0] <= vllm_version() < _KNOWN_LAYOUT[1]


def _grammar_bitmask(original: Function) -> Function:
    def grammar_bitmask(
        self: Any,
        requests: Mapping[str, Any],
        structured_output_request_ids: Sequence[str],
        scheduled_spec_decode_tokens: Mapping[str, Sequence[int]],
    ) -> Any:
        core = core_of(self)
        ids = structured_output_request_ids
        drafts = scheduled_spec_decode_tokens
        if core is None or not ids:
            return original(self, requests, ids, drafts)
        began = perf_counter()
        rows = None
        if core.settings.batched_masks and not self.vllm_config.model_config.is_diffusion:
            try:
                with panics_as_errors:
                    rows = batched(self, core, requests, ids, drafts)
            except Exception:  # here it would end the engine
                core.settings = replace(core.settings, batched_masks=False)
                log.exception(
                    "process %d fills masks one by one from now on, because filling all of a step "
                    "in one call failed (batched_masks)",
                    os.getpid(),
                )
        if rows is None:
            rows = original(self, requests, ids, drafts)
        core.counts.mask_fill_seconds.observe(perf_counter() - began)
        return rows

    return grammar_bitmask


def batched(
    manager: Any,
    core: Core,
    requests: Mapping[str, Any],
    ids: Sequence[str],
    drafts: Mapping[str, Sequence[int]],
) -> Any:
    """The rows as numpy; None where vLLM's own way is needed."""
    from inferway.structured.backends.fill import Rows

    free: list[tuple[int, int]] = []  # rows that let every token through: from, and before
    fills: list[Rows] = []
    alone: list[tuple[RequestGrammar, int]] = []
    row = 0
    for request_id in ids:
        request = requests[request_id]
        tokens = drafts.get(request_id, ())
        stripped = _before_padding(tokens)
        grammar = request.structured_output_request.grammar
        if not isinstance(grammar, RequestGrammar):
            return None
        start = manager._get_constraint_bounds(request, stripped).constraint_start
        if start > 0 and tokens:
            return None  # its reasoning ends among the drafts
        after = row + len(tokens) + 1
        if start > 0 or grammar.is_terminated():
            free.append((row, after))
        elif grammar.grammar is None:
            alone += [(grammar, at) for at in range(row, after)]
        else:
            fills.append(Rows(grammar.grammar, row, stripped))
            free.append((row + len(stripped) + 1, after))
        row = after
    bitmask = _bitmask(manager, core)
    if row > len(bitmask):
        return None
    words = bitmask.numpy()
    core.filler.fill(fills, words)
    for first, last in free:
        words[first:last] = -1
    for grammar, at in alone:
        grammar.fill_bitmask(bitmask, at)
    return words[:row]


def _bitmask(manager: Any, core: Core) -> Any:
    """vLLM's own, made as vLLM would make it, so that either of us may fill it."""
    if manager._grammar_bitmask is None:
        config = manager.vllm_config
        num_drafts = config.speculative_config.num_speculative_tokens if speculates(config) else 0
        size = config.scheduler_config.max_num_seqs * (1 + num_drafts)
        manager._grammar_bitmask = core.allocate_token_bitmask(size)
    return manager._grammar_bitmask


def speculates(vllm_config: Any) -> bool:
    return vllm_config.speculative_config is not None


def _before_padding(tokens: Sequence[int]) -> list[int]:
    """vLLM pads drafts that were refused with -1."""
    found = list(tokens)
    return found[: found.index(-1)] if -1 in found else found
