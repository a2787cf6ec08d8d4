"""The API server's side: whether what is asked can be kept, before the engine core hears of it.

vLLM checks a request on the server's event loop. Here each spec is judged once, off it, and
the verdict is kept (`verdicts.Verdicts`): the middleware asks with the request's own places, the
hook before the engine client with what vLLM made of the request (`examine_params`), and vLLM's own
check finds the verdict there (`require`).

A shape that must be kept is only checked here: whether a library takes it, and what is not
enforced, the engine core finds when it compiles it, once, while it computes the prompt (`_judged`).
The head of the answer waits for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from inferway_structured.cache import RecentlyUsed
from inferway_structured.compile.compilations import CompileLimits
from inferway_structured.errors import (
    CompileError,
    InferwayError,
    QuarantinedError,
    SaturatedError,
    SpecError,
)
from inferway_structured.grammar import ARGUMENTS, Unenforced, Verdict
from inferway_structured.library import HELPER_LIMITS, GrammarLibrary
from inferway_structured.report import in_request
from inferway_structured.requests import key_of_fields
from inferway_structured.sandbox.process import Limits as HelperLimits
from inferway_structured.spec import (
    MAKERS,
    OPTION_NAMES,
    Kind,
    OutputConstraint,
    Spec,
    fields_of,
    from_vllm,
)
from inferway_structured.turns import ANYBODY
from inferway_structured.verdicts import Verdicts
from inferway_structured.vllm.calls import (
    ON_ITS_WAY,
    RequestContext,
    about_calls,
    free_calls,
    left_out,
)
from inferway_structured.vllm.core import mark, with_flags
from inferway_structured.vllm.endpoints import ask_cores

# The params that `examine_params` was here with, and the key of their spec.
_EXAMINED: ContextVar[tuple[object, str]] = ContextVar("inferway_params", default=(None, ""))
_SPECS_BYTES = 16 << 20
_MAX_LEFT_OUT = 256


class ApiServerSide:
    """The checks that one API server process makes."""

    def __init__(self, helper_limits: HelperLimits = HELPER_LIMITS) -> None:
        self.verdicts = Verdicts(
            GrammarLibrary(helper_limits), quarantine_seconds=CompileLimits().quarantine_seconds
        )
        self.counts = self.verdicts.counts
        self._specs: RecentlyUsed[bytes, Spec] = RecentlyUsed(_SPECS_BYTES)  # of what vLLM has made
        # what these leave out of the calls, by the keys of what vLLM has made, and of each
        self._left_out: RecentlyUsed[tuple[str, ...], Sequence[Unenforced]] = RecentlyUsed(
            _MAX_LEFT_OUT
        )

    async def examine(
        self,
        asked: Sequence[OutputConstraint],
        client: Any,
        *,
        key: bytes | None,
        refuses_unenforced: bool,
    ) -> tuple[RequestContext, Sequence[Unenforced]]:
        """Return a request whose shapes are valid, with what is not enforced of them. What the
        engine core, which `client` reaches, has to find out by compiling is found meanwhile. `key`
        and errors: as of `Verdicts.examine`."""
        if len(asked) == 1 and not (asked[0].may_be_free or refuses_unenforced):
            (one,) = asked
            if not self.verdicts.is_judged(one.spec):
                await self.verdicts.find(one, compiles=False)
                judging = self.verdicts.spawn(self._judged(one, client))
                return RequestContext(asked, judging=judging), ()
        kept, left = await self.verdicts.examine(
            asked, key=key, refuses_unenforced=refuses_unenforced
        )
        return RequestContext(kept), left

    async def _judged(self, asked: OutputConstraint, client: Any) -> Verdict | InferwayError:
        """Return what the engine core makes of a spec, or what is found here if it cannot say."""
        try:
            (told,) = await ask_cores(client, "judge", fields_of(asked.spec))
        except Exception:
            try:
                return await self.verdicts.verdict(asked)
            except InferwayError as e:
                return e
        found = verdict_of(told)
        if isinstance(found, Verdict | SpecError):
            self.verdicts.learn(asked.spec, found)
        return in_request(asked, found) if isinstance(found, SpecError) else found

    async def examine_params(self, request_id: str, params: Any, config: Any) -> None:
        """Examine what vLLM has made of a request: `params` are its StructuredOutputsParams,
        `config` the engine's StructuredOutputsConfig. Raises as `Verdicts.examine`."""
        request = ON_ITS_WAY.get()
        if request is not None:
            request.ids.append(request_id)
        if request is None or not request.calls:
            spec = await self._spec(params, config)
            asked = _as_asked(spec)
            is_judged_there = (
                request is not None and request.judging is not None and asked in request.asked
            )
            if not is_judged_there:
                await self.verdicts.verdict(asked)
        else:
            try:
                spec = await self._examine_calls(request, params, config)
            except SpecError:
                await self.verdicts.read(ANYBODY, free_calls, params)
                spec = await self._examine_calls(request, params, config)
                request.left_out = (ARGUMENTS,)
        _EXAMINED.set((params, spec.key))

    async def _spec(self, params: Any, config: Any) -> Spec:
        """Return what vLLM has made of a request: at once, if it has made the same lately."""
        fields = {name: getattr(params, name, None) for name in (*MAKERS, *OPTION_NAMES)}
        key = key_of_fields("", fields)
        spec = None if key is None else self._specs.get(key)
        if spec is None:
            spec = await self.verdicts.read(ANYBODY, _spec, params, config)
            if key is not None:
                self._specs.put(key, spec, len(key) + len(spec.text))
        return spec

    async def _examine_calls(self, request: RequestContext, params: Any, config: Any) -> Spec:
        """Examine what vLLM has made of tools: the schema of each was examined alone. Return it.
        Raises as `examine_params`, with the place of all tools."""
        try:
            spec = await self._spec(params, config)
            is_checked = spec.kind is Kind.STRUCTURAL_TAG
            found = await self.verdicts.verdict(OutputConstraint(spec, ""), checks=not is_checked)
        except SpecError as e:
            raise about_calls(request.asked, e) from None
        if all(each.spec.key != spec.key for each in request.asked if each.tool is None):
            keys = (spec.key, *[each.spec.key for each in request.calls])
            known = self._left_out.get(keys)
            if known is None:
                made = partial(left_out, request.calls, spec, found)
                known = await self.verdicts.read(ANYBODY, made)
                self._left_out.put(keys, known)
            request.left_out = known
        return spec

    def require(self, params: Any, config: Any) -> None:
        """Stand in for vLLM's own check: at once where `examine_params` was here before. Marks
        `params` for the engine core. Raises as `examine_params`."""
        examined, key = _EXAMINED.get()
        if examined is not params:
            spec = _spec(params, config)
            self.verdicts.verdict_now(_as_asked(spec))
            key = spec.key
        mark(params, key)

    async def close(self) -> None:
        """End what is under way, with every process of ours."""
        await self.verdicts.close()


def verdict_of(told: Mapping[str, Any]) -> Verdict | InferwayError:
    """Return what an engine core has told of a spec."""
    if "backend" in told:
        return Verdict(told["backend"], [Unenforced(*each) for each in told["unenforced"]])
    if told["status"] == 400:
        kind = QuarantinedError if told.get("killed") else SpecError
        return kind(told["message"], place=told["place"] or "", keyword=told["keyword"])
    return (
        SaturatedError(told["message"]) if told["status"] == 429 else CompileError(told["message"])
    )


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
