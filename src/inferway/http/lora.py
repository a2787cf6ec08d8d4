"""POST /v1/load_lora_adapter, /v1/unload_lora_adapter: what an engine must be asked by an admin.

An adapter is a path in the engine's file system, which is no client's to choose. The request goes
to the engines that `?engine=NAME` names (more than once, if need be), or to every one that answers:
a model that only some serve is served by those. The answer says what each of them said.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from inferway.errors import NoEndpointError, UnknownPathError, UpstreamError
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.http.auth import Auth
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.http.server import Handler
from inferway.model import Headers
from inferway.upstream.headers import header_block
from inferway.upstream.pool import Pool

PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
_MAX_SAID_BYTES = 2000

log = logging.getLogger("inferway.admin")


class LoraRoutes:
    """The two paths that load and unload adapters. `for_admins` has the handlers by path and
    method."""

    def __init__(self, fleet: Fleet, pool: Pool, auth: Auth) -> None:
        self._fleet = fleet
        self._pool = pool
        self._auth = auth
        self.for_admins: Mapping[str, Mapping[str, Handler]] = {
            path: {"POST": self._change} for path in PATHS
        }

    async def _change(self, request: Request, responder: Responder) -> None:
        """200 if all engines have done it, else the worst that one has said."""
        if not self._auth.knows_admins:  # every client would be one
            raise UnknownPathError(
                f"{request.path}: adapters are loaded by admins, and none is known here"
                " (admin_key_env, api_keys)"
            )
        engines = self._engines(parse_qs(request.query).get("engine", []))
        said = await asyncio.gather(*(self._ask(engine, request) for engine in engines))
        for engine, answer in zip(engines, said, strict=True):
            log.info(
                "engine %s was told to change its adapters by %s, and answered %d",
                engine.name,
                request.path,
                answer["status"],
            )
            for endpoint in engine.endpoints[:1]:
                self._fleet.suspect(endpoint)  # it is asked at once for what it serves
        body = {"engines": {e.name: answer for e, answer in zip(engines, said, strict=True)}}
        worst = max(answer["status"] for answer in said)
        responder.send(worst, JSON, msgspec.json.encode(body))

    def _engines(self, names: list[str]) -> list[Engine]:
        engines = self._fleet.engines
        for name in names:
            if all(engine.name != name for engine in engines):
                known = ", ".join(engine.name for engine in engines)
                raise UnknownPathError(f"no engine is called {name[:200]!r}; known: {known}")
        chosen = [e for e in engines if (e.name in names if names else e.healthy)]
        if not chosen:
            raise NoEndpointError("no engine answers")
        return chosen

    async def _ask(self, engine: Engine, request: Request) -> dict[str, Any]:
        lines = header_block((*JSON, (b"x-request-id", request.id), *engine.headers))
        whole = _Whole()
        exchange = self._pool.send(
            engine.url, "POST", request.path.encode(), lines, request.body, whole
        )
        try:
            status, body = await whole.answer
        except UpstreamError as e:
            return {"status": e.status, "said": str(e)}
        except asyncio.CancelledError:
            exchange.abort()
            raise
        return {"status": status, "said": body[:_MAX_SAID_BYTES].decode("utf-8", "replace")}


class _Whole:
    """An answer in one piece (upstream's Sink)."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body = b""

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        del headers, length
        self._status = status

    def on_chunk(self, chunk: bytes) -> None:
        if len(self._body) < _MAX_SAID_BYTES:
            self._body += chunk

    def on_end(self, chunk: bytes) -> None:
        self.on_chunk(chunk)
        if not self.answer.done():
            self.answer.set_result((self._status, self._body))

    def on_error(self, error: UpstreamError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
