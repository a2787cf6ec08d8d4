"""What is noted of one request in its stream, and its line in the access log."""

from __future__ import annotations

import time
from dataclasses import dataclass

from inferway.frontends.http.access_log import LOGGER, MAX_PATH, Line, milliseconds, tell
from inferway.frontends.http.trace_context import trace_id_of
from inferway.frontends.log_lines import stamp
from inferway.frontends.request_counts import CLIENT_GONE
from inferway.model import RequestHead
from inferway.steps.record import Record

_TRACEPARENT = b"traceparent"


@dataclass(slots=True)
class Noted:
    """The exchange writes it; `record` is the picker's."""

    head: RequestHead | None = None
    client: str = ""  # its address; empty: the proxy does not tell
    request_id: str = ""
    record: Record | None = None  # of its journey, once there is one
    outcome: str = ""  # empty: nothing was answered
    status: int = 0  # that the client was sent; 0: none was seen
    answer_bytes: int | None = 0  # None: they do not pass the picker

    def end(self, outcome: str, status: int, answer_bytes: int | None) -> None:
        """Only the first call counts."""
        if not self.outcome:
            self.outcome, self.status, self.answer_bytes = outcome, status, answer_bytes


def line_of(noted: Noted, seconds: float) -> Line | None:
    """Its stream has ended, so long after the request was complete. None: it never was, and nobody
    was answered."""
    head, record = noted.head, noted.record
    if head is None or not (noted.outcome or record):
        return None
    line = Line(
        stamp(time.time()),
        "info",
        LOGGER,
        noted.client,
        head.method,
        head.path[:MAX_PATH],
        noted.status or CLIENT_GONE,
        noted.outcome or "client_gone",
        total_ms=milliseconds(seconds),
        bytes=noted.answer_bytes,
        request_id=noted.request_id,
    )
    for name, value in head.headers:
        if name == _TRACEPARENT:
            line.trace_id = trace_id_of(value)
    if record is not None:
        tell(line, record)
    return line
