"""A request's prompt is computed while its grammar compiles.

vLLM lets a request wait outside the batch until its grammar is ready. Here it goes in at once and
is given its prompt but for the last token, so that it is a prefill that has not ended: nothing is
sampled, no mask is needed. When the grammar is ready, the last token follows.

What is held so is bounded (`overlap_held` requests, and never with a full cache), because blocks of
a request that cannot go on are missing elsewhere. A request whose prompt is cached waits as before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

from inferway_structured.vllm.core import EngineCoreSide, core_of
from inferway_structured.vllm.fit import Patch

log = logging.getLogger("vllm.inferway")

MAX_CACHE_USAGE = 0.8  # of the engine's blocks; above it requests wait outside

_SCHEDULER = "vllm.v1.core.sched.scheduler"

Function = Callable[..., Any]
Refuse = Callable[[], object]


@dataclass(slots=True)
class HeldRequest:
    """A request that went in before its grammar."""

    since: float
    prefilled: float | None = None  # when all but the last token was computed


class Overlap:
    """Lets requests of one engine core begin before their grammars; its thread alone uses it."""

    def __init__(self, core: EngineCoreSide) -> None:
        self._core = core
        self._held: dict[str, HeldRequest] = {}
        self._why_not: str | None = None  # None: not looked at yet

    def lets_in(self, scheduler: Any, request: Any) -> bool:
        """Return whether `request`, which waits for its grammar, begins with its prompt."""
        if not self._core.settings.overlap or not self._fits(scheduler):
            return False
        if not _pending(request):
            return False
        for gone in [each for each in self._held if each not in scheduler.requests]:
            del self._held[gone]
        if len(self._held) >= self._core.settings.overlap_held:
            return False
        if scheduler.kv_cache_manager.usage > MAX_CACHE_USAGE:
            return False
        # With nothing to compute but the last token, it would hold up all who wait behind it.
        cached = scheduler.kv_cache_manager.get_computed_blocks(request)[1]
        if request.num_tokens - cached <= scheduler.block_size:
            return False
        self._held[request.request_id] = HeldRequest(monotonic())
        return True

    def _fits(self, scheduler: Any) -> bool:
        """Return whether it can be done with this scheduler; says once why not."""
        if self._why_not is None:
            self._why_not = _why_not(scheduler)
            if self._why_not:
                log.warning(
                    "process %d does not compute prompts while their grammars compile (overlap), "
                    "because %s",
                    os.getpid(),
                    self._why_not,
                )
        return not self._why_not

    def give_up(self) -> None:
        """Let nothing in any more; what is in goes on."""
        self._core.settings = replace(self._core.settings, overlap=False)

    def holds_back(self, request: Any) -> bool:
        """Return whether it was sent back to the queue, and its grammar is still to come."""
        return request.request_id in self._held and _pending(request)

    def most(self, request: Any, num_computed: int, num_new: int, refuse: Refuse) -> int:
        """Return how many of `num_new` tokens may be computed now. Where the grammar cannot be had,
        this asks to `refuse` the request."""
        held = self._held.get(request.request_id)
        if held is None:
            return num_new
        grammar = request.structured_output_request.grammar
        if isinstance(grammar, Exception):
            del self._held[request.request_id]
            refuse()
            return 0
        if grammar is not None:
            self._release(request.request_id, held)
            return num_new
        left: int = request.num_tokens - 1 - num_computed
        if left <= 0 and held.prefilled is None:
            held.prefilled = monotonic()
        return max(0, min(num_new, left))

    def _release(self, request_id: str, held: HeldRequest) -> None:
        del self._held[request_id]
        until = monotonic() if held.prefilled is None else held.prefilled
        self._core.counts.compile_hidden_seconds.observe(until - held.since)

    @property
    def num_held(self) -> int:
        return len(self._held)


def _pending(request: Any) -> bool:
    asked = request.structured_output_request
    return asked is not None and asked.grammar is None


def _why_not(scheduler: Any) -> str:
    """Empty where a prompt may come in parts, and no other part of vLLM has a say in them."""
    if scheduler.connector is not None:
        return "a KV connector has a say in prefills"
    if not scheduler.scheduler_config.enable_chunked_prefill:
        return "chunked prefill is switched off"
    if getattr(scheduler, "need_mamba_block_aligned_split", False):
        return "the prefill of this model ends at certain tokens only"
    if not scheduler.structured_output_manager._use_async_grammar_compilation:
        return "vLLM waits for grammars, so that all ranks see them ready in the same step"
    return ""


def patches() -> list[Patch]:
    return [
        Patch(
            _SCHEDULER,
            "Scheduler._handle_blocked_waiting_request",
            ("self", "request"),
            _handle_blocked,
        ),
        Patch(
            _SCHEDULER,
            "Scheduler._reserve_prefill_lookahead",
            ("self", "request", "num_computed_tokens", "num_new_tokens"),
            _reserve,
        ),
    ]


def _overlap_of(scheduler: Any) -> Overlap | None:
    core = core_of(scheduler.structured_output_manager)
    if core is None:
        return None
    if core.overlap is None:
        core.overlap = Overlap(core)
    overlap: Overlap = core.overlap
    return overlap


def _handle_blocked(original: Function) -> Function:
    from vllm.v1.request import RequestStatus

    def _handle_blocked_waiting_request(self: Any, request: Any) -> Any:
        if request.structured_output_request is None or (overlap := _overlap_of(self)) is None:
            return original(self, request)
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            if _lets_in(overlap, self, request):
                request.status = RequestStatus.WAITING
                return True
        elif overlap.holds_back(request):
            return False
        return original(self, request)

    return _handle_blocked_waiting_request


def _lets_in(overlap: Overlap, scheduler: Any, request: Any) -> bool:
    try:
        return overlap.lets_in(scheduler, request)
    except Exception:  # here it would end the engine
        overlap.give_up()
        log.exception(
            "process %d no longer computes prompts while their grammars compile, because the "
            "choice of a request for it failed (overlap)",
            os.getpid(),
        )
        return False


def _reserve(original: Function) -> Function:
    from vllm.v1.request import RequestStatus

    def refuse(scheduler: Any, request: Any) -> None:
        """Has vLLM write down the error as it does for who waits outside: each version has its own
        form of it."""
        status = request.status
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        scheduler._handle_blocked_waiting_request(request)
        request.status = status

    def _reserve_prefill_lookahead(
        self: Any, request: Any, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        num_new: int = original(self, request, num_computed_tokens, num_new_tokens)
        if request.structured_output_request is None or (overlap := _overlap_of(self)) is None:
            return num_new
        return overlap.most(request, num_computed_tokens, num_new, partial(refuse, self, request))

    return _reserve_prefill_lookahead
