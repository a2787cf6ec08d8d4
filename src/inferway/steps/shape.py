"""A request that wants its answer in a shape -> whether that can be kept. No engine has seen it."""

from __future__ import annotations

from inferway.gate.gate import Gate
from inferway.gate.shape import Shape
from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.shapes import shape_fields
from inferway.openai_api.unread import UnreadBody
from inferway_structured.turns import Asker


async def shape_of(
    gate: Gate | None, path: str, request: LLMRequest, candidates: Candidates
) -> Shape | None:
    """None for most requests, after a microsecond. Raises SpecError, or ChecksBusyError or
    SaturatedError where too many wait."""
    if gate is None:
        return None
    fields = shape_fields(request.body)
    if not fields:
        return None
    is_echoed = bool(getattr(request.body, "echo", None))
    asker = Asker(request.tenant, request.objectives.priority)
    return await gate.check(
        *(path, fields, len(request.raw), candidates.endpoints), is_echoed=is_echoed, asker=asker
    )


async def shape_of_unread(
    gate: Gate | None, path: str, asker: Asker, read: UnreadBody, candidates: Candidates
) -> Shape | None:
    """Of what carries no prompt that we could read, and asks for a shape all the same, such as
    Anthropic's messages. As `shape_of`."""
    if gate is None:
        return None
    fields = shape_fields(read.members)
    if not fields:
        return None
    return await gate.check(path, fields, len(read.raw), candidates.endpoints, asker=asker)
