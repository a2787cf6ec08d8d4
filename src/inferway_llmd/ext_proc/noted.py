"""What is noted of one stream: a request that a proxy has sent, and its answer."""

from __future__ import annotations

import time
from dataclasses import dataclass

from inferway.model import Headers, RequestHead
from inferway.routing.record import Record
from inferway.telemetry.answer_log import CLIENT_GONE
from inferway.telemetry.tracing import TRACEPARENT, RequestSpan
from inferway_llmd.ext_proc.counts import ModelCounts

_NO_HEAD = RequestHead("", "", "", ())


@dataclass(slots=True)
class Noted:
    """An answer_log.EndedAnswer, once the stream has ended. The exchange writes it, but `asked_at`
    and `span` are its driver's, `record` and `counts` are the picker's."""

    head: RequestHead = _NO_HEAD
    client: str = ""  # its address; empty: the proxy does not tell
    request_id: str = ""
    asked_at: float = 0.0  # time.perf_counter() when the request was complete; 0.0: it is not
    span: RequestSpan | None = None
    record: Record | None = None  # of its journey, once there is one
    counts: ModelCounts | None = None  # of its model, once it is known where it goes
    outcome: str = ""  # empty: nothing was answered
    status: int = CLIENT_GONE  # that the client was sent, if one was seen
    body_bytes: int | None = 0  # of the answer; None: they do not pass the picker

    def end(self, outcome: str, status: int, body_bytes: int | None) -> None:
        """The answer has ended. Only the first call counts."""
        if not self.outcome:
            self.outcome, self.body_bytes = outcome, body_bytes
            self.status = status or CLIENT_GONE

    @property
    def is_answered(self) -> bool:
        """Whether there is anything to tell: the request was complete, or somebody was answered."""
        return bool(self.outcome or self.record)

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def user_agent(self) -> bytes:
        return last_value(self.head.headers, b"user-agent") or b""

    @property
    def seconds(self) -> float:
        """Since the request was complete; 0.0 if it never was."""
        return time.perf_counter() - self.asked_at if self.asked_at else 0.0

    @property
    def traceparent(self) -> bytes | None:
        """That of the request's span, or else the client's."""
        if self.span is not None:
            return self.span.traceparent
        return last_value(self.head.headers, TRACEPARENT)


def last_value(headers: Headers, wanted: bytes) -> bytes | None:
    """Return the header's value, of several the last one's; None without it."""
    return next((value for name, value in reversed(headers) if name == wanted), None)
