"""An engine that renders and does nothing else, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import EngineFacts, ModelCard

Json = dict[str, Any]

GENERATION_PROMPT = [7, 7]


def chat_ids(body: Json) -> list[int]:
    """Its template: the role, the text, an end; then the prompt for an answer."""
    ids: list[int] = []
    for message in body["messages"]:
        ids += [1000 + len(message["role"]), *str(message.get("content")).encode(), 0]
    return ids + (GENERATION_PROMPT if body.get("add_generation_prompt") is not False else [])


def text_ids(text: str) -> list[int]:
    return list(text.encode())


@dataclass
class RenderServer:
    """What it does can be changed at any time; `asked` has the (path, body) of all questions."""

    scale_out: bool = True
    status: int = 200
    answer: bytes | None = None  # instead of a rendering
    render: Callable[[Json], list[int]] = chat_ids
    tokenize: Callable[[Json], list[int]] = chat_ids
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[tuple[str, Json]] = field(default_factory=list)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.may_answer.set()

    @property
    def rendered(self) -> list[Json]:
        return [body for path, body in self.asked if path.endswith("/render")]

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        path = request.path
        self.asked.append((path, body))
        await self.may_answer.wait()
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        if path.endswith("/render") and not self.scale_out:
            return web.json_response({"error": {"message": "disabled"}}, status=403)
        if self.answer is not None:
            return web.Response(body=self.answer)
        return web.json_response(self._answer(path, body))

    def _answer(self, path: str, body: Json) -> Any:
        prompts = body.get("prompt")
        texts: list[str] = prompts if isinstance(prompts, list) else [str(prompts)]
        if path == "/v1/chat/completions/render":
            return {"request_id": "r", "token_ids": self.render(body), "features": None}
        if path == "/v1/completions/render":
            return [{"request_id": "r", "token_ids": text_ids(text)} for text in texts]
        if path == "/tokenize":
            ids = self.tokenize(body) if "messages" in body else text_ids(body["prompt"])
            return {"count": len(ids), "max_model_len": 1, "tokens": ids, "token_strs": None}
        if path == "/v1/chat/completions":
            return {"choices": [{"index": 0}], "prompt_token_ids": self.render(body)}
        assert path == "/v1/completions"
        return {
            "choices": [
                {"index": i, "prompt_token_ids": text_ids(text)} for i, text in enumerate(texts)
            ]
        }


@asynccontextmanager
async def running(server: RenderServer, *models: str) -> AsyncIterator[RenderServer]:
    """The server on a free port, as an engine of the fleet that serves these models."""
    runner = web.AppRunner(server.application(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    cards = tuple(ModelCard(model, None, None, None) for model in models or ("m",))
    server.engine = Engine(EngineSettings(url=f"http://{host}:{port}"), ())
    server.engine.facts = EngineFacts(cards, (), None, ())
    server.engine.healthy = True
    try:
        yield server
    finally:
        server.may_answer.set()
        await runner.cleanup()
