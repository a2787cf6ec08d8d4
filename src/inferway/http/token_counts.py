"""POST /v1/messages/count_tokens, answered here: an agent asks it before each turn, of prompts that
the gateway has to know anyway.

Only where the probe has found that engines count as we do, and the whole prompt is known. All else
is an engine's to answer, and to refuse. A request takes its turn as one that is forwarded does.
"""

from __future__ import annotations

import msgspec

from inferway.errors import InferwayError
from inferway.fleet.fleet import Fleet
from inferway.http.auth import Auth
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.openai_api.requests import CountTokensRequest, parse_count_tokens
from inferway.prompts.fidelity import count
from inferway.prompts.served import ServedModel
from inferway.routing.director import Director
from inferway.routing.limits.callers import ApiCaller
from inferway.routing.objectives import objectives


class TokenCounts:
    """Counts the tokens of messages, if an engine would count the same."""

    def __init__(self, director: Director, fleet: Fleet, auth: Auth) -> None:
        self._director = director
        self._fleet = fleet
        self._auth = auth

    async def answers(self, request: Request, responder: Responder, caller: ApiCaller) -> bool:
        """Answer the request, and return True; or do nothing, and return False. Raises
        SaturatedError, as for a request that is forwarded."""
        director = self._director
        try:
            body = await director.parse(parse_count_tokens, request.body)
            model = self._fleet.model(director.rewrites.target(body.model))
        except InferwayError:
            return False
        if not model.counts_messages:
            return False
        slot = self._auth.ticket(responder, self._auth.tenant(caller, request))
        if slot is not None:
            wanted = objectives(request.headers, director.priorities, caller.priority)
            await slot.enter(model.name, request.headers, wanted.priority)
        try:
            num_tokens = await _counted(model, body)
        finally:
            if slot is not None:
                slot.leave()
        if num_tokens is None:
            return False
        told = {
            "input_tokens": num_tokens,
            "context_management": {"original_input_tokens": num_tokens},
        }
        responder.send(200, JSON, msgspec.json.encode(told))
        return True


async def _counted(model: ServedModel, body: CountTokensRequest) -> int | None:
    prompts = model.prompts.local
    return None if prompts is None else await count(prompts, body)
