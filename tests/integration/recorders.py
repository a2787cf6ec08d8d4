"""Engines that keep what they are asked, and a gateway in front of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from tests.integration.conftest import answering

from inferway.app import Gateway
from inferway.config import EngineSettings, ServeSettings
from inferway_console.console import Console
from inferway_console.records.records import Records


@dataclass
class Seen:
    """One request, as it arrived."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass
class Recorder:
    """Serves `models`; answers all but discovery with `status` and `answer`."""

    models: tuple[str, ...] = ("m",)
    status: int = 200
    answer: bytes = b'{"ok": true}'
    headers: dict[str, str] = field(default_factory=dict)  # of its answers
    prefix: str = ""  # of all its paths
    pause: asyncio.Event | None = None  # until which no answer is given
    seen: list[Seen] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        if not request.path.startswith(self.prefix):
            raise web.HTTPNotFound
        path = request.path.removeprefix(self.prefix)
        if (request.method, path) == ("GET", "/v1/models"):
            data = [{"id": name, "root": "/nowhere"} for name in self.models]
            return web.json_response({"data": data})
        if (request.method, path) == ("GET", "/metrics"):
            return web.Response(text="")
        if "x-request-id" not in request.headers:
            raise web.HTTPNotFound  # the gateway's own question, not a client's
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.read()
        self.seen.append(Seen(request.method, request.path, headers, body))
        if self.pause is not None:
            await self.pause.wait()
        headers = {"access-control-allow-origin": "*"} if "origin" in headers else {}
        kind = {"content-type": "application/json", **headers, **self.headers}
        return web.Response(status=self.status, body=self.answer, headers=kind)


@dataclass
class Front:
    """The gateway, and a client of it."""

    gateway: Gateway
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.admin_port}"

    async def ask(
        self, path: str, data: Any = None, method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers with names in lower case, body)."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = path if path.startswith("http") else self.url + path
        async with self.http.request(method, url, data=data, headers=named) as answer:
            told = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, told, await answer.read()


@asynccontextmanager
async def in_front_of(*engines: Recorder, **settings: Any) -> AsyncIterator[Front]:
    """They are called e0, e1, ..."""
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(answering(engine.handle)) for engine in engines]
        described = [
            EngineSettings(url=url + engine.prefix, name=f"e{i}")
            for i, (url, engine) in enumerate(zip(urls, engines, strict=True))
        ]
        settings.setdefault("access_log", None)
        gateway = Gateway(ServeSettings(engines=described, port=0, **settings))
        await gateway.start()
        stack.push_async_callback(gateway.close)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Front(gateway, http)


def records_of(gateway: Gateway) -> Records:
    """Return what the gateway's console keeps of requests."""
    (console,) = [each for each in gateway.extensions if isinstance(each, Console)]
    return console.records
