"""ASGI as dicts: no framework's classes, which change with vLLM's version."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from inferway_structured.errors import InferwayError, RequestError, SpecError

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def read_body(receive: Receive, most: int | None = None) -> bytes | None:
    """Return the body of a request; None if the client has gone. Raises ValueError over `most`
    bytes."""
    pieces = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if most is not None and size > most:
            raise ValueError(size)
        if not message.get("more_body", False):
            return b"".join(pieces)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return what receives the body in one piece, then what really comes: that the client
    leaves."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def answer_error(send: Send, error: InferwayError) -> None:
    """Answer with an error in the form of vLLM's own."""
    status = getattr(error, "status", 500)
    kinds = {400: "BadRequestError", 429: "TooManyRequestsError", 503: "ServiceUnavailableError"}
    param = error.param if isinstance(error, RequestError) else None
    told = {
        "message": str(error),
        "type": kinds.get(status, "InternalServerError"),
        "param": param,
        "code": status,
    }
    if isinstance(error, SpecError) and error.keyword is not None:
        told["keyword"] = error.keyword
    await answer_json(send, status, {"error": told})


async def answer_json(send: Send, status: int, value: object) -> None:
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
