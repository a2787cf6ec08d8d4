"""POST /v1/structured/explain: a request -> what would become of the shape that it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from inferway.errors import BodyTooLargeError, UnknownPathError
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.openai_api.requests import decode_body
from inferway.routing.director import Director
from inferway_structured.requests import read_specs
from inferway_structured.spec import OutputConstraint
from inferway_structured.turns import Asker

PATH = "/v1/structured/explain"
MAX_BODY_BYTES = 2 << 20
MAX_SPECS = 16
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class Explain:
    """Answers the path for one gateway."""

    def __init__(self, director: Director, asker_of: Callable[[Request], Asker]) -> None:
        self._director = director
        self._asker_of = asker_of

    async def __call__(self, request: Request, responder: Responder) -> None:
        gate = self._director.gate
        if gate is None or gate.verdicts is None:
            raise UnknownPathError(
                f"{PATH}: nothing is checked here; pip install 'inferway[structured]', and"
                " structured.check: true"
            )
        if len(request.body) > MAX_BODY_BYTES:
            raise BodyTooLargeError(f"body: {len(request.body)} bytes, at most {MAX_BODY_BYTES}")
        asker = self._asker_of(request)
        verdicts = gate.verdicts
        asked = await verdicts.read(asker, _read, request.body)
        told = [await gate.explain(verdicts, each, asker) for each in asked[:MAX_SPECS]]
        body = {"specs": told, "num_specs": len(asked)}
        responder.send(200, JSON, msgspec.json.encode(body))


def _read(body: bytes) -> list[OutputConstraint]:
    """Return the specs in a body. Raises RequestError."""
    fields = decode_body(body, _OBJECT)
    return read_specs(fields)
