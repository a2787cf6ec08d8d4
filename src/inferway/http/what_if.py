"""GET /admin/what-if: how a question about the recorded hours stands. POST asks one; DELETE stops
what runs, and forgets what came of it.

For admins (`routes`); without any, for browsers and programs on this machine alone, as the page.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from inferway.errors import InvalidRequestError
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.page.what_if import WhatIfQuestion, WhatIfReplays
from inferway.scheduling.load import POLICIES

PATH = "/admin/what-if"
_MAX_BYTES = 8 * 1024
_FORM = '{"policy": ..., "engines": 6, "cache": "2x", "prefill_apart": true, "hours": 24}'

Handler = Callable[[Request, Responder], Coroutine[Any, Any, None]]


class WhatIfPath:
    """`check` raises ForbiddenError for who may not ask."""

    def __init__(self, replays: WhatIfReplays, check: Callable[[Request, Responder], None]) -> None:
        self._replays = replays
        self._check = check
        self.methods: Mapping[str, Handler] = {
            "GET": self._tell,
            "POST": self._ask,
            "DELETE": self._stop,
        }

    async def _tell(self, request: Request, responder: Responder) -> None:
        self._check(request, responder)
        self._send(responder, 200)

    async def _ask(self, request: Request, responder: Responder) -> None:
        self._check(request, responder)
        self._replays.ask(_question(request.body))
        self._send(responder, 202)

    async def _stop(self, request: Request, responder: Responder) -> None:
        self._check(request, responder)
        self._replays.stop()
        self._send(responder, 200)

    def _send(self, responder: Responder, status: int) -> None:
        told = msgspec.to_builtins(self._replays.told())
        body = msgspec.json.encode({**told, "policies": POLICIES})
        responder.send(status, (*JSON, (b"cache-control", b"no-store")), body)


def _question(body: bytes) -> WhatIfQuestion:
    """Raises InvalidRequestError that names what is wrong."""
    if len(body) > _MAX_BYTES:
        raise InvalidRequestError(f"body: {len(body)} bytes, longer than any question is")
    try:
        return msgspec.json.decode(body or b"{}", type=WhatIfQuestion)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        said = str(e)[:300]
        raise InvalidRequestError(f"body: {said}; expected as much of {_FORM} as differs") from e
