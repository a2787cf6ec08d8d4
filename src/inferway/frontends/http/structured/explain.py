"""POST /v1/structured/explain: a request -> what would become of the shape that it asks for."""

from __future__ import annotations

import msgspec

from inferway.director import Director
from inferway.errors import BodyTooLargeError, UnknownPathError
from inferway.frontends.http.message import Request
from inferway.frontends.http.responder import JSON, Responder
from inferway.gate.reading import read_specs

PATH = "/v1/structured/explain"
MAX_BODY_BYTES = 2 << 20
MAX_SPECS = 16


class Explain:
    """The handler."""

    def __init__(self, director: Director) -> None:
        self._director = director

    async def __call__(self, request: Request, responder: Responder) -> None:
        gate = self._director.gate
        if gate is None or gate.library is None:
            raise UnknownPathError(
                f"{PATH}: nothing is checked here; pip install 'inferway[structured]', and"
                " structured.check: true"
            )
        if len(request.body) > MAX_BODY_BYTES:
            raise BodyTooLargeError(f"body: {len(request.body)} bytes, at most {MAX_BODY_BYTES}")
        asked = await gate.in_thread(read_specs, request.body)
        told = [await gate.explain(each) for each in asked[:MAX_SPECS]]
        body = {"specs": told, "num_specs": len(asked)}
        responder.send(200, JSON, msgspec.json.encode(body))
