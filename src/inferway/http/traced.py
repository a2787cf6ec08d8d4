"""A handler's requests, each with a span."""

from __future__ import annotations

import time
from collections.abc import Container

from inferway.extension import is_probe
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.server import Handler
from inferway.telemetry.tracing import TRACEPARENT, TRACESTATE, Tracing


def traced(handler: Handler, tracing: Tracing, known: Container[str]) -> Handler:
    """Return a handler that begins a span for each request and then is `handler`; the server ends
    it, if `tracing` is one of its logs. Paths that are not `known` name no span."""

    async def begin_and_handle(request: Request, responder: Responder) -> None:
        fields = request.fields
        if not is_probe(request.path, fields.get(b"user-agent", b"")):
            seconds = time.perf_counter() - request.started
            responder.span = span = tracing.begin(
                *(request.method, request.path, request.request_id, fields.get(TRACEPARENT)),
                seconds,
                is_known=request.path in known,
            )
            _tell(request, span.traceparent, drops_state=span.is_root)
        await handler(request, responder)

    return begin_and_handle


def _tell(request: Request, traceparent: bytes, *, drops_state: bool) -> None:
    """Whoever gets this request knows of our span; `tracestate` is its parent's, or nobody's."""
    dropped = {TRACEPARENT, TRACESTATE} if drops_state else {TRACEPARENT}
    request.headers = [h for h in request.headers if h[0] not in dropped]
    request.headers.append((TRACEPARENT, traceparent))
    request.fields = {n: v for n, v in request.fields.items() if n not in dropped}
    request.fields[TRACEPARENT] = traceparent
