"""The endpoints of an engine with our structured output. Nothing is compiled here: an engine
without weights writes what it likes."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from inferway.errors import InvalidRequestError
from inferway_structured.decoding import UNREADABLE

MAX_WARMED = 1000


class _Warm(msgspec.Struct):
    kind: str
    text: str
    options: dict[str, Any] = {}


_WARM = msgspec.json.Decoder(_Warm)


class Structured:
    """`warmed`: what it was told in advance, in order; the first so many."""

    def __init__(self) -> None:
        self.warmed: list[tuple[str, str]] = []  # (kind, text)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/structured/warm", self._warm),
            web.get("/v1/structured/stats", self._stats),
        ]

    async def _warm(self, request: web.Request) -> web.Response:
        try:
            spec = _WARM.decode(await request.read())
        except UNREADABLE as e:
            raise InvalidRequestError(f"body: {e}") from e
        if len(self.warmed) < MAX_WARMED:
            self.warmed.append((spec.kind, spec.text))
        return web.json_response({"accepted": True}, status=202)

    async def _stats(self, _: web.Request) -> web.Response:
        return web.json_response({"plugin": "inferway", "counts": {}, "cores": []})
