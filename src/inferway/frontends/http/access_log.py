"""One line per answered request, through the logger `inferway.access`.

A logging call costs half as much as proxying a whole request, so that lines are collected and
handed over together: one record has one or more lines, at most a second late.

text    method path status body-bytes milliseconds engine request-id
json    the same by name, with the second it ended in, and the trace's id if the request has one

Neither ever holds a query, a header's or a body's text, but for path, request id and trace id.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from inferway.frontends.http.responder import Responder
from inferway.frontends.http.trace_context import trace_id_of

_FLUSH_LINES = 256
_MAX_PATH = 200

Line = Callable[[Responder], str]


class AccessLog:
    """Collects lines; `flush` is called by the server's timer and at its end."""

    def __init__(self, line: Line | None = None) -> None:
        self._logger = logging.getLogger("inferway.access")
        self._line = line or text_line
        self._lines: list[str] = []

    def add(self, responder: Responder) -> None:
        """`responder` has ended."""
        self._lines.append(self._line(responder))
        if len(self._lines) >= _FLUSH_LINES:
            self.flush()

    def flush(self) -> None:
        """Hands over what was collected."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._logger.info("%s", "\n".join(lines))


def text_line(responder: Responder) -> str:
    request = responder.request
    milliseconds = (time.perf_counter() - request.started) * 1e3
    return (
        f"{request.method} {request.path[:_MAX_PATH]} {responder.status} {responder.body_bytes} "
        f"{milliseconds:.1f} {responder.engine} {request.id.decode()}"
    )


class _Line(msgspec.Struct, omit_defaults=True):
    time: float
    method: str
    path: str
    status: int
    bytes: int
    milliseconds: float
    engine: str
    request_id: str
    trace_id: str = ""


def json_line(responder: Responder) -> str:
    request = responder.request
    line = _Line(
        time=round(time.time(), 3),
        method=request.method,
        path=request.path[:_MAX_PATH],
        status=responder.status,
        bytes=responder.body_bytes,
        milliseconds=round((time.perf_counter() - request.started) * 1e3, 1),
        engine=responder.engine,
        request_id=request.id.decode(),
        trace_id=trace_id_of(request.fields.get(b"traceparent")),
    )
    return msgspec.json.encode(line).decode()


LINES: dict[str, Line] = {"text": text_line, "json": json_line}
