"""The calls of tools as vLLM asks for them: one structural tag, or one schema, for all calls.

It writes the schemas of strict tools there, and lets all others have any JSON value for arguments,
also where a call is required. Here whatever was examined and can be kept is written there, and any
object for the rest: clients take no other value for arguments, and Anthropic's API knows none.
"""

from __future__ import annotations

import json
from asyncio import Future
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from inferway_structured.backends.xgrammar import XGrammar
from inferway_structured.errors import InferwayError, SpecError
from inferway_structured.grammar import ARGUMENTS, Unenforced, Verdict
from inferway_structured.report import in_request
from inferway_structured.spec import (
    ANY_ARGUMENTS,
    Kind,
    OutputConstraint,
    Spec,
    canonical,
    schemas_of,
)
from inferway_structured.vllm.fit import Patch

_REGISTRY = "vllm.tool_parsers.structural_tag_registry"


@dataclass(slots=True)
class RequestContext:
    """A request on its way to the engine core, as the middleware has read it."""

    asked: Sequence[OutputConstraint]
    ids: list[str] = field(default_factory=list)  # vLLM's, of what became of it
    # What the engine core makes of its one shape, while that is not known here.
    judging: Future[Verdict | InferwayError] | None = None
    # Of its tools, in what vLLM has made of them: nothing, as long as it has not.
    left_out: Sequence[Unenforced] = (ARGUMENTS,)

    @property
    def calls(self) -> Sequence[OutputConstraint]:
        return [each for each in self.asked if each.tool is not None]

    @property
    def left_free(self) -> Sequence[Unenforced]:
        return self.left_out if self.calls else ()


ON_ITS_WAY: ContextVar[RequestContext | None] = ContextVar("inferway_request", default=None)


def patches() -> list[Patch]:
    """Return the patches of an API server."""

    def resolve(original: Callable[..., Any]) -> Callable[..., Any]:
        def resolve_tool_strictness(tools: Any, tool_choice: Any, strict_level: Any) -> Any:
            found = original(tools, tool_choice, strict_level)
            request = ON_ITS_WAY.get()
            if found is None or request is None:
                return found
            free = {each.tool: each.free for each in request.calls}
            return [
                _held(tool, any_object=bool(free[name])) if (name := _name(tool)) in free else tool
                for tool in found
            ]

        return resolve_tool_strictness

    parameters = ("tools", "tool_choice", "strict_level")
    return [Patch(_REGISTRY, "resolve_tool_strictness", parameters, resolve)]


def _name(tool: Any) -> object:
    """Return the name of a tool of chats, or of the Responses API."""
    return getattr(getattr(tool, "function", tool), "name", None)


def _held(tool: Any, *, any_object: bool) -> Any:
    """A copy that is held to its schema, or to any object: the prompt has the tool as it came."""
    update: dict[str, Any] = {"strict": True}
    if any_object:
        update["parameters"] = json.loads(ANY_ARGUMENTS.text)
    if hasattr(tool, "function"):
        return tool.model_copy(update={"function": tool.function.model_copy(update=update)})
    return tool.model_copy(update=update)


def left_out(calls: Sequence[OutputConstraint], spec: Spec, found: Verdict) -> list[Unenforced]:
    """Return what `spec`, made by vLLM, does not keep of what the tools ask, beside what was named
    of each alone."""
    if spec.kind is not Kind.STRUCTURAL_TAG:
        return []
    held = list(schemas_of(json.loads(spec.text)))
    texts = {canonical(one.holder[one.key], "", len(spec.text)) for one in held}
    if any(each.spec.text not in texts for each in calls if not _is_any(each)):
        return [ARGUMENTS]
    if found.backend != XGrammar.name:
        return []
    places = [one.place for one in held]
    inner = {
        Unenforced(one.place.removeprefix(place), one.keyword): None
        for one in found.unenforced
        for place in places
        if one.place.startswith(place)
    }
    return list(inner)


def _is_any(asked: OutputConstraint) -> bool:
    return asked.spec.text == ANY_ARGUMENTS.text


def free_calls(params: Any) -> None:
    """Let calls have any arguments in vLLM's StructuredOutputsParams, and keep the rest."""
    if params.structural_tag is not None:
        tag = json.loads(params.structural_tag)
        for one in list(schemas_of(tag)):
            one.holder[one.key] = json.loads(ANY_ARGUMENTS.text)
        params.structural_tag = json.dumps(tag)
        return
    schema = params.json
    if not isinstance(schema, dict) or "items" not in schema:
        params.json = json.loads(ANY_ARGUMENTS.text)  # of one named tool
        return
    for call in schema["items"]["anyOf"]:
        call["properties"]["parameters"] = {"type": "object"}
    schema.pop("$defs", None)


def about_calls(asked: Sequence[OutputConstraint], refused: SpecError) -> SpecError:
    """Return a refusal with a place in the request: where there are several calls, what is refused
    is all together."""
    if len(asked) == 1:
        return in_request(asked[0], SpecError(str(refused), keyword=refused.keyword))
    return SpecError(f"tools: {refused}", keyword=refused.keyword, param="tools")
