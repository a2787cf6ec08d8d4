"""POST /score_chat_completions, /score_completions and /query: what each engine holds of a prompt.

For admins (`routes`): a cache is an oracle (`auth`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from inferway.errors import RequestError
from inferway.http.inference_ingress import InferenceIngress
from inferway.http.message import Request
from inferway.http.query import in_our_fields, parse_query, query_answer
from inferway.http.responder import JSON, Responder
from inferway.http.server import Handler
from inferway.indexer import Indexer
from inferway.openai_api.kinds import Parse
from inferway.openai_api.requests import parse_chat, parse_completion
from inferway.routing.director import Director
from inferway.routing.objectives import named_tenant
from inferway.telemetry.observers import pod_score

PATHS = ("/score_chat_completions", "/score_completions", "/query")


class ScorePages:
    """`for_admins` has the handlers by path and method."""

    def __init__(self, indexer: Indexer, director: Director, entrance: InferenceIngress) -> None:
        self._indexer = indexer
        self._director = director
        self._entrance = entrance
        handlers = (self._chat, self._completion, self._query)
        self.for_admins: Mapping[str, Mapping[str, Handler]] = {
            path: {"POST": handler} for path, handler in zip(PATHS, handlers, strict=True)
        }

    async def _chat(self, request: Request, responder: Responder) -> None:
        await self._score(parse_chat, "messages", request, responder)

    async def _completion(self, request: Request, responder: Responder) -> None:
        await self._score(parse_completion, "prompt", request, responder)

    async def _score(self, parse: Parse, echo: str, request: Request, responder: Responder) -> None:
        """Seed 003's form: pod_scores in blocks, beside the model and what was asked. With salts,
        of the tenant that the header names: a key here is an admin's."""
        body, _ = await self._entrance.kept_apart(request.body, named_tenant(request.headers))
        asked = await self._director.parse(parse, body)
        scores = await self._indexer.score_request(asked)
        told = {
            "pod_scores": {name: pod_score(e.score) for name, e in scores.engines.items()},
            "model": scores.model,
            echo: getattr(asked, echo),
        }
        responder.send(200, JSON, msgspec.json.encode(told))

    async def _query(self, request: Request, responder: Responder) -> None:
        query = await self._director.parse(parse_query, request.body)
        try:
            scores = await self._indexer.score_tokens(
                query.tokens, query.model, query.engines, query.lora, query.cache_salt
            )
        except RequestError as e:
            raise in_our_fields(e) from e
        responder.send(200, JSON, msgspec.json.encode(query_answer(query, scores)))
