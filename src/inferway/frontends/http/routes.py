"""The gateway's paths. Each handler answers one request; errors become OpenAI-shaped bodies.

POST /v1/chat/completions, /v1/completions,
     /v1/responses, /v1/embeddings, /v1/conversations      routed and forwarded
POST /score_chat_completions, /score_completions, /query   what each engine holds of a prompt
GET  /v1/models   /health   /ready   /metrics   /admin/engines

With an admin key configured, what the caches hold of a prompt is for its bearers only: scores, and
the headers of an answer that say how it was decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from inferway.director import Routed
from inferway.errors import MethodNotAllowedError, RequestError, UnknownPathError
from inferway.frontends.http.admin import AdminPages
from inferway.frontends.http.admin_key import AdminKey
from inferway.frontends.http.forward import forward
from inferway.frontends.http.message import Request
from inferway.frontends.http.metrics import MetricsPage
from inferway.frontends.http.query import in_our_fields, parse_query, query_answer
from inferway.frontends.http.responder import JSON, Responder
from inferway.frontends.observers import Ended, Observer, Watched, pod_score
from inferway.indexer import Indexer
from inferway.openai_api.paths import PARSERS, Parse
from inferway.openai_api.requests import parse_chat, parse_completion
from inferway.upstream.pool import Pool

Handler = Callable[[Request, Responder], Coroutine[Any, Any, None]]

_ADMIN_PATHS = frozenset({"/score_chat_completions", "/score_completions", "/query"})
_ADMIN_PREFIX = "/admin/"
_STORED = ("/v1/responses/", "/v1/conversations/")


class Routes:
    """The handler of every request."""

    def __init__(
        self,
        indexer: Indexer,
        pool: Pool,
        metrics: MetricsPage,
        observers: Sequence[Observer] = (),
        admin_key: AdminKey | None = None,
    ) -> None:
        self._indexer = indexer
        self._director, self._fleet = indexer.director, indexer.fleet
        self._pool = pool
        self._metrics = metrics
        self._observers = observers
        self._admin_key = admin_key
        self._table: dict[str, dict[str, Handler]] = {
            **{path: {"POST": self._infer} for path in PARSERS},
            "/v1/models": {"GET": self._models},
            "/score_chat_completions": {"POST": self._score_chat},
            "/score_completions": {"POST": self._score_completion},
            "/query": {"POST": self._query},
            "/admin/engines": {"GET": AdminPages(indexer.fleet, indexer.index).engines},
            "/health": {"GET": self._health},
            "/ready": {"GET": self._ready},
            "/metrics": {"GET": self._page},
        }

    async def __call__(self, request: Request, responder: Responder) -> None:
        """Raises what goes wrong before an answer has begun; the server answers with it."""
        if self._admin_key is not None and _is_for_admins(request.path):
            self._admin_key.check(request.headers)
        await self._handler(request)(request, responder)

    def _handler(self, request: Request) -> Handler:
        methods = self._table.get(request.path)
        if methods is None:
            if request.path.startswith(_STORED):
                raise UnknownPathError(
                    f"{request.path[:200]}: what an engine has stored, it alone has, and which one"
                    " is not kept here; ask the engine that x-inferway-engine named"
                )
            known = ", ".join(self._table)
            raise UnknownPathError(f"no path {request.path[:200]!r} here; known: {known}")
        method = "GET" if request.method == "HEAD" else request.method
        handler = methods.get(method)
        if handler is None:
            allowed = ", ".join(methods)
            raise MethodNotAllowedError(
                f"{request.path}: method {request.method} not allowed; use {allowed}",
                allowed=allowed,
            )
        return handler

    async def _infer(self, request: Request, responder: Responder) -> None:
        started = time.perf_counter()
        explain = self._may_be_told(request)
        journey = self._director.open(request.head, request.body, request.id.decode())
        try:
            decision = await journey.decide()
            seconds = time.perf_counter() - started
            self._metrics.decided_in(seconds)
            ended = self._observe(request, journey.routed, seconds)
        except BaseException as e:
            journey.close("refused" if isinstance(e, RequestError) else "error")
            raise
        watched = Watched(journey, ended) if ended else journey
        forward(request, responder, watched, decision, self._pool, explain=explain)

    def _may_be_told(self, request: Request) -> bool:
        """Whether the client may see how its request is decided. An admin's key ends here: the
        request travels on without it."""
        key = self._admin_key
        if key is None:
            return True
        if not key.is_carried(request.headers):
            return False
        request.headers = key.without(request.headers)
        request.fields.pop(b"authorization", None)
        return True

    def _observe(self, request: Request, routed: Routed | None, seconds: float) -> list[Ended]:
        """Tells the observers; those that want to know how it ends."""
        if routed is None:
            return []
        request_id = request.id.decode()
        told = [observer(request_id, routed, seconds) for observer in self._observers]
        return [ended for ended in told if ended is not None]

    async def _score_chat(self, request: Request, responder: Responder) -> None:
        await self._score(parse_chat, "messages", request, responder)

    async def _score_completion(self, request: Request, responder: Responder) -> None:
        await self._score(parse_completion, "prompt", request, responder)

    async def _score(self, parse: Parse, echo: str, request: Request, responder: Responder) -> None:
        """Seed 003's form: pod_scores in blocks, beside the model and what was asked."""
        asked = await self._director.parse(parse, request.body)
        scores = await self._indexer.score_request(asked)
        body = {
            "pod_scores": {name: pod_score(e.score) for name, e in scores.engines.items()},
            "model": scores.model,
            echo: getattr(asked, echo),
        }
        responder.send(200, JSON, msgspec.json.encode(body))

    async def _query(self, request: Request, responder: Responder) -> None:
        query = await self._director.parse(parse_query, request.body)
        try:
            scores = await self._indexer.score_tokens(
                query.tokens, query.model, query.engines, query.lora, query.cache_salt
            )
        except RequestError as e:
            raise in_our_fields(e) from e
        responder.send(200, JSON, msgspec.json.encode(query_answer(query, scores)))

    async def _models(self, _: Request, responder: Responder) -> None:
        """OpenAI's list; fields beyond it are those vLLM gives."""
        cards: dict[str, dict[str, Any]] = {}
        for engine in self._fleet.engines:
            for card in engine.facts.models if engine.facts and engine.healthy else ():
                cards.setdefault(
                    card.name,
                    {
                        "id": card.name,
                        "object": "model",
                        "created": 0,
                        "owned_by": "inferway",
                        "parent": card.parent,
                        "max_model_len": card.max_model_len,
                    },
                )
        for name, rewritten in self._director.rewrites.cards(cards).items():
            cards.setdefault(name, rewritten)
        body = {"object": "list", "data": list(cards.values())}
        responder.send(200, JSON, msgspec.json.encode(body))

    async def _health(self, _: Request, responder: Responder) -> None:
        responder.send(200, JSON, b'{"status":"ok"}')

    async def _ready(self, _: Request, responder: Responder) -> None:
        """200 when a request would be answered; the reasons are given either way."""
        report = self._fleet.report()
        ready = any(engine["healthy"] for engine in report["engines"])
        body = {"ready": ready, **report}
        responder.send(200 if ready else 503, JSON, msgspec.json.encode(body))

    async def _page(self, _: Request, responder: Responder) -> None:
        content_type, body = self._metrics.render()
        responder.send(200, ((b"content-type", content_type),), body)


def _is_for_admins(path: str) -> bool:
    return path in _ADMIN_PATHS or path.startswith(_ADMIN_PREFIX)
