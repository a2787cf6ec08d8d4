"""The notes on one stream: a request that a proxy has sent, and its answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import urandom

from inferway.extension import CLIENT_GONE, EndedAnswer
from inferway.model import RequestHead
from inferway.routing.record import Record
from inferway.telemetry.tracing import TRACEPARENT, RequestSpan
from inferway_llmd.ext_proc.counts import ModelCounts

_NO_HEAD = RequestHead("", "", "", ())


@dataclass(slots=True)
class Noted:
    """The details of a request and its answer. The exchange writes it, but `asked_at` and `span`
    are its driver's, `record` and `counts` are the picker's."""

    head: RequestHead = _NO_HEAD
    fields: Mapping[bytes, bytes] = field(default_factory=dict)  # the last value of each header
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
        """True if there is anything to tell: the request was complete, or an answer was sent."""
        return bool(self.outcome or self.record)

    @property
    def seconds(self) -> float:
        """The time since the request was complete; 0.0 if it never was."""
        return time.perf_counter() - self.asked_at if self.asked_at else 0.0

    def as_ended(self) -> EndedAnswer:
        """Return what extensions see of it."""
        fields, span = self.fields, self.span
        return EndedAnswer(
            client=self.client,
            method=self.head.method,
            path=self.head.path,
            user_agent=fields.get(b"user-agent", b""),
            request_id=self.request_id,
            traceparent=fields.get(TRACEPARENT) if span is None else span.traceparent,
            status=self.status,
            outcome=self.outcome,
            at=time.time(),
            seconds=self.seconds,
            body_bytes=self.body_bytes,
            record=self.record,
            span=span,
        )


def new_request_id() -> str:
    """Return a random UUID of version 4 (RFC 9562). The module uuid takes five times as long."""
    text = urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"
