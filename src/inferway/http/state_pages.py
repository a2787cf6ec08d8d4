"""GET /health and /ping: whether the gateway lives. GET /ready: whether a request would be
answered, and routed by its prompt; else why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from inferway.fleet.fleet import Fleet
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.http.server import Handler

READY = "/ready"
PATHS = ("/health", "/ping", READY)


class StatePages:
    """`for_clients` and `for_admins` have the handlers by path and method. `shows_names`: whether
    who asks on the clients' port is told the names of engines and models."""

    def __init__(self, fleet: Fleet, shows_names: Callable[[Request], bool]) -> None:
        self._fleet = fleet
        self._shows_names = shows_names
        self.for_clients: Mapping[str, Mapping[str, Handler]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},  # vLLM's other name for it
            READY: {"GET": self._ready},
        }
        self.for_admins = {**self.for_clients, READY: {"GET": self._ready_with_names}}

    async def _health(self, _: Request, responder: Responder) -> None:
        responder.send(200, JSON, b'{"status":"ok"}')

    async def _ready(self, request: Request, responder: Responder) -> None:
        if self._shows_names(request):
            await self._ready_with_names(request, responder)
        else:
            why = self._fleet.why_not_ready(with_names=False)
            _send_ready(responder, why, self._fleet.num_engines())

    async def _ready_with_names(self, _: Request, responder: Responder) -> None:
        _send_ready(responder, self._fleet.why_not_ready(), self._fleet.report())


def _send_ready(responder: Responder, why: str | None, told: Mapping[str, Any]) -> None:
    body = msgspec.json.encode({"ready": why is None, "why": why, **told})
    if why is None:
        responder.send(200, JSON, body)
    else:
        responder.send(503, (*JSON, (b"retry-after", b"1")), body)
