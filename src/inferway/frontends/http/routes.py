"""The gateway's paths. Each handler answers one request; errors become OpenAI-shaped bodies.

POST /v1/chat/completions, /v1/completions     routed and forwarded
POST /score_chat_completions, /score_completions   what each engine holds of a prompt
GET  /v1/models   /health   /ready   /metrics
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from inferway.director import Director, Routed
from inferway.errors import MethodNotAllowedError, RequestError, UnknownPathError
from inferway.fleet.fleet import Fleet
from inferway.frontends.http.forward import forward
from inferway.frontends.http.message import Request
from inferway.frontends.http.metrics import MetricsPage
from inferway.frontends.http.responder import JSON, Responder
from inferway.frontends.observers import Ended, Observer, Watched, pod_scores
from inferway.upstream.pool import Pool

Handler = Callable[[Request, Responder], Coroutine[Any, Any, None]]


class Routes:
    """The handler of every request."""

    def __init__(
        self,
        director: Director,
        fleet: Fleet,
        pool: Pool,
        metrics: MetricsPage,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._director = director
        self._fleet = fleet
        self._pool = pool
        self._metrics = metrics
        self._observers = observers
        self._table: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._infer},
            "/v1/completions": {"POST": self._infer},
            "/v1/models": {"GET": self._models},
            "/score_chat_completions": {"POST": self._score_chat},
            "/score_completions": {"POST": self._score_completion},
            "/health": {"GET": self._health},
            "/ready": {"GET": self._ready},
            "/metrics": {"GET": self._page},
        }

    async def __call__(self, request: Request, responder: Responder) -> None:
        """Raises what goes wrong before an answer has begun; the server answers with it."""
        await self._handler(request)(request, responder)

    def _handler(self, request: Request) -> Handler:
        methods = self._table.get(request.path)
        if methods is None:
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
        journey = self._director.open(request.head, request.body)
        try:
            decision = await journey.decide()
            seconds = time.perf_counter() - started
            self._metrics.decided_in(seconds)
            ended = self._observe(request, journey.routed, seconds)
        except BaseException as e:
            journey.close("refused" if isinstance(e, RequestError) else "error")
            raise
        watched = Watched(journey, ended) if ended else journey
        forward(request, responder, watched, decision, self._pool)

    def _observe(self, request: Request, routed: Routed | None, seconds: float) -> list[Ended]:
        """Tells the observers; those that want to know how it ends."""
        if routed is None:
            return []
        request_id = request.id.decode()
        told = [observer(request_id, routed, seconds) for observer in self._observers]
        return [ended for ended in told if ended is not None]

    async def _score_chat(self, request: Request, responder: Responder) -> None:
        await self._score("/v1/chat/completions", "messages", request, responder)

    async def _score_completion(self, request: Request, responder: Responder) -> None:
        await self._score("/v1/completions", "prompt", request, responder)

    async def _score(self, path: str, echo: str, request: Request, responder: Responder) -> None:
        """Seed 003's form: pod_scores in blocks, beside the model and what was asked."""
        scored = await self._director.score(path, request.body)
        body = {
            "pod_scores": pod_scores(scored.candidates),
            "model": scored.model.answers_as,
            echo: scored.request.fields[echo],
        }
        responder.send(200, JSON, msgspec.json.encode(body))

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
