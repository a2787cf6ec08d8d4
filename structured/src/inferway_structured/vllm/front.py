"""The API server's side: whether what is asked can be kept, before the engine core hears of it.

vLLM checks a request on the server's event loop. Here each spec is judged once, off it, and
the verdict is kept (`verdicts.Verdicts`): the middleware asks with the request's own places, the
hook before the engine client with what vLLM made of the request (`examine_params`), and vLLM's own
check finds the verdict there (`require`).
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from typing import Any

from inferway_structured.compile.compile_limits import CompileLimits
from inferway_structured.errors import SpecError
from inferway_structured.grammar import ARGUMENTS
from inferway_structured.library import HELPER_LIMITS, GrammarLibrary
from inferway_structured.sandbox.process import Limits as HelperLimits
from inferway_structured.spec import Kind, OutputConstraint, Spec, from_vllm
from inferway_structured.turns import ANYBODY
from inferway_structured.verdicts import Verdicts
from inferway_structured.vllm.calls import (
    ON_ITS_WAY,
    RequestContext,
    about_calls,
    free_calls,
    left_out,
)
from inferway_structured.vllm.core import BACKEND, with_flags

# The params that `examine_params` was here with.
_EXAMINED: ContextVar[object] = ContextVar("inferway_params", default=None)


class ApiServerSide:
    """The checks that one API server process makes."""

    def __init__(self, helper_limits: HelperLimits = HELPER_LIMITS) -> None:
        self.verdicts = Verdicts(
            GrammarLibrary(helper_limits), quarantine_seconds=CompileLimits().quarantine_seconds
        )
        self.counts = self.verdicts.counts

    async def examine_params(self, request_id: str, params: Any, config: Any) -> None:
        """Examine what vLLM has made of a request: `params` are its StructuredOutputsParams,
        `config` the engine's StructuredOutputsConfig. Raises as `Verdicts.examine`."""
        request = ON_ITS_WAY.get()
        if request is not None:
            request.ids.append(request_id)
        if request is None or not request.calls:
            spec = await self.verdicts.read(ANYBODY, _spec, params, config)
            await self.verdicts.verdict(_as_asked(spec))
        else:
            try:
                await self._examine_calls(request, params, config)
            except SpecError:
                await self.verdicts.read(ANYBODY, free_calls, params)
                await self._examine_calls(request, params, config)
                request.left_out = (ARGUMENTS,)
        _EXAMINED.set(params)

    async def _examine_calls(self, request: RequestContext, params: Any, config: Any) -> None:
        """Examine what vLLM has made of tools: the schema of each was examined alone. Raises as
        `examine_params`, with the place of all tools."""
        try:
            spec = await self.verdicts.read(ANYBODY, _spec, params, config)
            is_checked = spec.kind is Kind.STRUCTURAL_TAG
            found = await self.verdicts.verdict(OutputConstraint(spec, ""), checks=not is_checked)
        except SpecError as e:
            raise about_calls(request.asked, e) from None
        if all(each.spec.key != spec.key for each in request.asked if each.tool is None):
            made = partial(left_out, request.calls, spec, found)
            request.left_out = await self.verdicts.read(ANYBODY, made)

    def require(self, params: Any, config: Any) -> None:
        """Stand in for vLLM's own check: at once where `examine_params` was here before. Marks
        `params` for the engine core. Raises as `examine_params`."""
        if _EXAMINED.get() is not params:
            self.verdicts.verdict_now(_as_asked(_spec(params, config)))
        params._backend = BACKEND

    async def close(self) -> None:
        """End what is under way, with every process of ours."""
        await self.verdicts.close()


def _spec(params: Any, config: Any) -> Spec:
    return with_flags(from_vllm(params), config)


def _as_asked(spec: Spec) -> OutputConstraint:
    """Return the spec with its place in the request."""
    request = ON_ITS_WAY.get()
    asked = request.asked if request is not None else ()
    for each in asked:
        if each.spec.key == spec.key:
            return each
    return OutputConstraint(
        spec, f"structured_outputs/{spec.kind}", any(each.strict for each in asked)
    )
