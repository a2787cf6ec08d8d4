"""POST /v1/explain: a request that is sent nowhere -> where it would go, and why. Two of them ->
where their prompts part.

body                                  means
{"messages": ...}, {"prompt": ...}    a body of /v1/chat/completions, /v1/completions; with `input`
                                      one of /v1/responses
{"path": "/v1/messages", "body": {}}  a body of that path
{"bodies": [A, B]}                    two of either form

It needs the key that the request would need, takes its turn as the request would, and is refused
as that would be. Nothing is booked, and nobody learns from it. Who may not see how requests are
decided is told of the prompt alone, which is the caller's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from inferway.errors import FleetError, InvalidRequestError
from inferway.http.auth import Auth
from inferway.http.errors import withheld
from inferway.http.inference_ingress import InferenceIngress
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.model import RequestHead, block_size_of
from inferway.openai_api.requests import CHAT, COMPLETION, RESPONSES, decode_body, decode_fields
from inferway.routing.director import Director, Weighed
from inferway.routing.limits.callers import ApiCaller
from inferway.routing.limits.suspension import WORDS
from inferway_console.records.explanation import candidate_views, why
from inferway_console.records.parting import Side, parting

PATH = "/v1/explain"

_FORMS = (
    'expected a body of /v1/chat/completions or /v1/completions, {"path": ..., "body": {...}}, or'
    ' {"bodies": [A, B]} with two of these'
)
_PATHS = (
    ("messages", CHAT),
    ("prompt", COMPLETION),
    ("prompt_embeds", COMPLETION),
    ("input", RESPONSES),
)


_NONE = msgspec.Raw(b"null")


class _ExplainBody(msgspec.Struct, frozen=True):
    """The fields of a body that say what it is; a null is an absent field."""

    path: msgspec.Raw = _NONE
    body: msgspec.Raw = _NONE
    bodies: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    prompt_embeds: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE


class _Question(msgspec.Struct, frozen=True):
    """A request that is asked about."""

    path: str
    body: bytes


_DECODER = msgspec.json.Decoder(_ExplainBody)
_BODIES = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


class ExplainPath:
    """Answers the path for one gateway."""

    def __init__(self, director: Director, entrance: InferenceIngress, auth: Auth) -> None:
        self._director = director
        self._entrance = entrance
        self._auth = auth

    async def __call__(self, request: Request, responder: Responder) -> None:
        caller = self._auth.caller(request)
        questions = await self._director.parse(_questions, request.body)
        weighed = [await self._weigh(each, caller, request, responder) for each in questions]
        told = [
            self._told(each, question, shows_decision=caller.admin)
            for each, question in zip(weighed, questions, strict=True)
        ]
        answer: dict[str, Any] = told[0]
        if len(weighed) == 2:
            answer = {"bodies": told, "parting": await _parting(weighed, questions)}
        responder.send(200, JSON, msgspec.json.encode(answer))

    async def _weigh(
        self, question: _Question, caller: ApiCaller, request: Request, responder: Responder
    ) -> Weighed:
        auth = self._auth
        tenant = auth.tenant(caller, request)
        share = auth.share(tenant, request)
        slot = auth.ticket(responder, share)
        try:
            responder.check_client()
            return await self._entrance.weigh(
                *(RequestHead("POST", question.path, "", request.headers), question.body, slot),
                request_id=request.request_id,
                tenant=tenant,
                priority=caller.priority,
                share=share,
            )
        except FleetError as e:
            raise e if caller.admin else withheld(e, request.id) from None
        finally:
            if slot is not None:
                slot.leave()

    def _told(
        self, weighed: Weighed, question: _Question, *, shows_decision: bool
    ) -> dict[str, Any]:
        request = weighed.request
        blocks = {
            block_size_of(cut): sum(len(item.prompt.block_keys) for item in items)
            for cut, items in weighed.prompts.items()
        }
        told: dict[str, Any] = {
            "path": question.path,
            "model": request.target_model,
            "adapter": weighed.model.lora,
            "salted": request.body.cache_salt is not None,
            "prompt_tokens": request.num_prompt_tokens if weighed.prompts else None,
            "prompt_blocks": next(iter(blocks.values()), None),
        }
        if not shows_decision:
            return told
        views = candidate_views(weighed)
        targets = weighed.choice.targets
        prefill = weighed.choice.prefill
        return told | {
            "reason": weighed.reason,
            "block_sizes": blocks,
            "goes_to": targets[0].endpoint.name if targets else None,
            "then": [target.endpoint.name for target in targets[1:]],
            "prefill": prefill[0].endpoint.name if prefill else None,
            "profile": weighed.choice.profile or None,
            "why": why(weighed, views),
            "candidates": views,
            "left_out": self._left_out(weighed),
        }

    def _left_out(self, weighed: Weighed) -> list[dict[str, str]]:
        """Return which endpoints of the model might not be chosen."""
        director, standing = self._director, self._auth.failover.standing
        now = director.clock()
        there = {endpoint.holder for endpoint in weighed.candidates.endpoints}
        left: list[dict[str, str]] = []
        for endpoint in director.fleet.candidates(weighed.model.name).endpoints:
            if endpoint.holder in there:
                continue
            why = "it is full, or its context is too short"
            if endpoint.engine in standing.drained:
                why = "it is drained"
            elif endpoint.engine in standing.suspended:
                why = f"it {WORDS[standing.suspended[endpoint.engine]]}"
            elif standing.state(endpoint.engine, now) != "closed":
                why = "it is ejected: its last requests have failed"
            left.append({"endpoint": endpoint.name, "why": why})
        return left


def _questions(raw: bytes) -> Sequence[_Question]:
    """Return what is asked about. Raises InvalidRequestError."""
    asked = decode_body(raw, _DECODER)
    if not _is_given(asked.bodies):
        return [_question(asked, raw, "body")]
    try:
        bodies = _BODIES.decode(asked.bodies)
    except msgspec.ValidationError:
        bodies = []
    if len(bodies) != 2:
        raise InvalidRequestError(f"bodies: expected a list of two; {_FORMS}", param="bodies")
    return [
        _question(decode_body(bytes(each), _DECODER), bytes(each), f"bodies[{place}]")
        for place, each in enumerate(bodies)
    ]


def _question(asked: _ExplainBody, raw: bytes, where: str) -> _Question:
    body, given = raw, asked
    if _is_given(asked.body):
        body = bytes(asked.body)
        given = decode_body(body, _DECODER)
    if _is_given(asked.path):
        try:
            return _Question(_TEXT.decode(asked.path), body)
        except msgspec.ValidationError:
            raise InvalidRequestError(f"path: expected text; {_FORMS}", param="path") from None
    for name, path in _PATHS:
        if _is_given(getattr(given, name)):
            return _Question(path, body)
    raise InvalidRequestError(f"{where}: it has no prompt; {_FORMS}", param=where)


def _is_given(value: msgspec.Raw) -> bool:
    return bytes(value) != b"null"


async def _parting(weighed: Sequence[Weighed], questions: Sequence[_Question]) -> Mapping[str, Any]:
    """Return where the prompts of the two part."""
    first = [next(iter(each.prompts.items()), None) for each in weighed]
    if any(each is None or len(each[1]) != 1 for each in first):
        reasons = " and ".join(str(each.reason) for each in weighed)
        return {"says": f"their prompts cannot be compared: one of each must be known ({reasons})"}
    local = weighed[0].model.prompts.local

    def compared() -> Mapping[str, Any]:
        sides = [
            Side(
                token_ids=items[0].prompt.token_ids,
                fields=decode_fields(question.body),
                block_size=block_size_of(cut),
                shares_with=(each.model.name, each.request.body.cache_salt),
            )
            for each, question, (cut, items) in zip(
                weighed, questions, (each for each in first if each is not None), strict=True
            )
        ]
        return parting(sides[0], sides[1], local)

    return await asyncio.to_thread(compared)
