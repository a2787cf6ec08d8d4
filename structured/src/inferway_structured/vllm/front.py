"""The API server's side: whether what is asked can be kept, before the engine core hears of it.

vLLM checks a request on the server's event loop. Here each spec is judged once, in a thread, and
the verdict is kept: the middleware asks with the request's own places (`examine`), the hook before
the engine client with what vLLM made of the request (`examine_params`), and vLLM's own check finds
the verdict there (`require`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from inferway_structured.checker import HELPER_LIMITS, Checker
from inferway_structured.cost import is_costly
from inferway_structured.counts import Counts
from inferway_structured.errors import HeavyError, SaturatedError, SpecError
from inferway_structured.explain import explain
from inferway_structured.grammar import ARGUMENTS, Unenforced
from inferway_structured.helper.process import Limits as HelperLimits
from inferway_structured.keywords import label
from inferway_structured.report import in_request, keeps_all, left_free, refuse_unenforced
from inferway_structured.spec import Asked, Kind, Spec, from_vllm
from inferway_structured.trial import Judged, Trial
from inferway_structured.valid import Validator
from inferway_structured.vllm.calls import (
    ON_ITS_WAY,
    OnItsWay,
    about_calls,
    free_calls,
    left_out,
)
from inferway_structured.vllm.core import BACKEND, with_flags

if TYPE_CHECKING:
    from inferway_structured.backends.cascade import Verdict
    from inferway_structured.texts import Said

log = logging.getLogger("vllm.inferway")

MAX_VERDICTS = 4096
MAX_WAITING = 64  # specs being judged, and answers
JUDGE_SECONDS = 2.0
_NUM_THREADS = 2

# The params that `examine_params` was here with.
_EXAMINED: ContextVar[object] = ContextVar("inferway_params", default=None)


class Front:
    """One in each API server process."""

    def __init__(self, helper_limits: HelperLimits = HELPER_LIMITS) -> None:
        self.counts = Counts()
        self._checker = Checker(helper_limits=helper_limits)
        self._validator = Validator(self._checker.helper)
        self._trial = Trial()
        self._verdicts: OrderedDict[str, Verdict | Judged | SpecError] = OrderedDict()
        self._lock = Lock()
        self._coming: dict[str, asyncio.Future[Verdict | Judged]] = {}
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="structured")
        self._num_judging = 0

    # ------------------------------------------------------------------ before the engine sees it

    async def examine(
        self, asked: Sequence[Asked], *, refuse: bool = False
    ) -> tuple[list[Asked], list[Unenforced]]:
        """What is kept, and what the answer may break; `refuse`: of what is strict, nothing. Raises
        SpecError with the place in the request, and ChecksBusyError or SaturatedError when too many
        wait."""
        kept: list[Asked] = []
        unenforced: list[Unenforced] = []
        for each in asked:
            try:
                found = (await self.verdict(each)).unenforced
            except SpecError as e:
                if not each.may_be_free:
                    raise
                each, found = each.freed(e), ()
            if refuse:
                refuse_unenforced(each, found)
            kept.append(each)
            unenforced += (left_free(each),) if each.free else found
        return kept, unenforced

    async def verdict(self, asked: Asked) -> Verdict | Judged:
        """Raises as `examine`."""
        await self._checker.check(asked)
        try:
            return await self._verdict(asked.spec)
        except SpecError as e:
            raise in_request(asked, e) from None

    async def explain(self, asked: Asked, *, refuse: bool) -> dict[str, Any]:
        """As structured/explain.py says it; `refuse`: as `examine`. Raises ChecksBusyError."""
        told: dict[str, Any] = await self.in_thread(partial(self._explained, asked, refuse))
        return told

    def _explained(self, asked: Asked, refuse: bool) -> dict[str, Any]:
        return explain(
            asked,
            check=lambda each: self._checker.check_now(Asked(each, "")),
            verdict=self._judged,
            limits=self._checker.limits,
            refuse_unenforced=refuse,
        )

    async def examine_params(self, request_id: str, params: Any, config: Any) -> None:
        """`params`: vLLM's StructuredOutputsParams; `config`: the engine's
        StructuredOutputsConfig. Raises as `examine`."""
        request = ON_ITS_WAY.get()
        if request is not None:
            request.ids.append(request_id)
        if request is None or not request.calls:
            await self.verdict(_as_asked(await self.in_thread(partial(_spec, params, config))))
        else:
            try:
                await self._examine_calls(request, params, config)
            except SpecError:
                await self.in_thread(partial(free_calls, params))
                await self._examine_calls(request, params, config)
                request.left_out = (ARGUMENTS,)
        _EXAMINED.set(params)

    async def _examine_calls(self, request: OnItsWay, params: Any, config: Any) -> None:
        """Of what vLLM has made of tools: the schema of each was examined alone. Raises as
        `examine`, with the place of all tools."""
        try:
            spec = await self.in_thread(partial(_spec, params, config))
            if spec.kind is not Kind.STRUCTURAL_TAG:
                await self._checker.check(Asked(spec, ""))
            found = await self._verdict(spec)
        except SpecError as e:
            raise about_calls(request.asked, e) from None
        if all(each.spec.key != spec.key for each in request.asked if each.tool is None):
            made = partial(left_out, request.calls, spec, found)
            request.left_out = await self.in_thread(made)

    def require(self, params: Any, config: Any) -> None:
        """In vLLM's own check: at once where `examine_params` was here before. Marks `params` for
        the engine core. Raises as `examine`."""
        if _EXAMINED.get() is not params:
            asked = _as_asked(_spec(params, config))
            self._checker.check_now(asked)
            try:
                self._judged(asked.spec)
            except SpecError as e:
                raise in_request(asked, e) from None
        params._backend = BACKEND

    async def _verdict(self, spec: Spec) -> Verdict | Judged:
        key = spec.key
        known = self._known(key)
        if known is not None:
            return _given(known)
        coming = self._coming.get(key)
        if coming is None:
            if len(self._coming) >= MAX_WAITING:
                raise SaturatedError(
                    f"{len(self._coming)} shapes are being checked, at most {MAX_WAITING} at a "
                    "time; try again in a moment"
                )
            coming = self._coming[key] = self.in_thread(partial(self._judged, spec))
            coming.add_done_callback(lambda done: self._came(key, done))
        return await asyncio.shield(coming)

    def _came(self, key: str, done: asyncio.Future[Verdict | Judged]) -> None:
        self._coming.pop(key, None)
        if not done.cancelled():
            done.exception()  # looked at, so that nobody complains if all who waited have left

    def _judged(self, spec: Spec) -> Verdict | Judged:
        """Of a spec that was checked. Any thread. Raises SpecError."""
        known = self._known(spec.key)
        if known is not None:
            return _given(known)
        found: Verdict | Judged | SpecError
        try:
            found = self._worked_out(spec)
        except SpecError as e:
            found = e
        with self._lock:
            self._verdicts[spec.key] = found
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        if isinstance(found, SpecError):
            self.counts.refusals.add(label(found.keyword))
        return _given(found)

    def _worked_out(self, spec: Spec) -> Verdict | Judged:
        from inferway_structured.backends.cascade import light_verdict

        if not is_costly(spec):
            with suppress(HeavyError):
                return light_verdict(spec)
        return self._trial.verdict(spec)

    def _known(self, key: str) -> Verdict | Judged | SpecError | None:
        with self._lock:
            found = self._verdicts.get(key)
            if found is not None:
                self._verdicts.move_to_end(key)
            return found

    # -------------------------------------------------------------------------- when it is answered

    async def keeps(self, asked: Sequence[Asked], said: Sequence[Said] | None) -> bool | None:
        """Whether the answer has its shape; None if that cannot be told. Counts it."""
        valid = await self._keeps(asked, said)
        self.count_answer(valid)
        return valid

    def count_answer(self, valid: bool | None) -> None:
        """Count an answer by whether it has its shape."""
        self.counts.answers.add("unknown" if valid is None else "true" if valid else "false")

    async def _keeps(self, asked: Sequence[Asked], said: Sequence[Said] | None) -> bool | None:
        if said is None or self._num_judging >= MAX_WAITING:
            return None
        work = self.in_thread(partial(keeps_all, asked, said, self._holds))
        self._num_judging += 1
        work.add_done_callback(self._judged_one)
        done, _ = await asyncio.wait([work], timeout=JUDGE_SECONDS)
        return work.result() if done and work.exception() is None else None

    def _judged_one(self, done: asyncio.Future[bool | None]) -> None:
        self._num_judging -= 1
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error(
                "an answer could not be judged by the shape that was asked for", exc_info=error
            )

    def _holds(self, spec: Spec, text: str) -> bool | None:
        return self._validator.verdict(spec, text).valid

    @property
    def num_verdicts(self) -> int:
        """Specs that were judged, and are remembered."""
        return len(self._verdicts)

    def close(self) -> None:
        """No process of ours outlives it."""
        self._checker.close()
        self._trial.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def in_thread(self, work: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)


def _given(found: Verdict | Judged | SpecError) -> Verdict | Judged:
    if isinstance(found, SpecError):  # a new one: what is raised grows by where it was raised
        raise SpecError(str(found), place=found.place, keyword=found.keyword)
    return found


def _spec(params: Any, config: Any) -> Spec:
    return with_flags(from_vllm(params), config)


def _as_asked(spec: Spec) -> Asked:
    """With its place in the request."""
    request = ON_ITS_WAY.get()
    asked = request.asked if request is not None else ()
    for each in asked:
        if each.spec.key == spec.key:
            return each
    return Asked(spec, f"structured_outputs/{spec.kind}", any(each.strict for each in asked))
