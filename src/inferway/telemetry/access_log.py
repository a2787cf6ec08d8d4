"""One line for each answered request, and for each of the picker's, through the logger
`inferway.access`.

docs/observe.md lists the fields; a test compares it with `Line`. A field that has no value in an
answer is left out. No line ever holds a query, a header's or a body's text but for the path, the
model's name, the request id and the trace id; they are cut off at a length, and escaped.

A logging call costs half as much as proxying a whole request, so that the lines
of all answers that a Tap has put aside are one record.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from inferway.extension import CLIENT_GONE, PROBES, EndedAnswer, Extension
from inferway.routing.record import Record
from inferway.telemetry.log_lines import LogFormat, quoted, stamp
from inferway.telemetry.tracing import trace_id_of

LOGGER = "inferway.access"
_MAX_PATH = 200
_MAX_MODEL = 128


class Line(msgspec.Struct, omit_defaults=True):
    """The line that is logged for one answer. The names of the fields are those in the log, as text
    and as JSON."""

    time: str  # when the answer ended
    level: str
    logger: str
    client: str = ""
    method: str = ""
    path: str = ""
    status: int = 0  # always there, as is the outcome
    outcome: str = ""
    model: str = ""
    target_model: str = ""
    reason: str = ""
    engine: str = ""
    attempts: int = 0
    continued: int = 0  # times that another engine went on in the middle
    matched_blocks: int | None = None
    prompt_blocks: int | None = None
    prefill_engine: str = ""  # whose blocks the engine got
    prefill_ms: float | None = None  # that its prefill legs took
    ttft_ms: float | None = None
    total_ms: float = -1.0  # always there: none is the default
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    bytes: int | None = None
    request_id: str = ""
    trace_id: str = ""


class AccessLog(Extension):
    """Writes a line for each answer."""

    def __init__(self, log_format: LogFormat = "text", *, probes: bool = False) -> None:
        """`probes`: answers to PROBES have a line, too."""
        self._logger = logging.getLogger(LOGGER)
        self._write = _json if log_format == "json" else _text
        self._left_out = frozenset() if probes else PROBES

    def on_answers(self, answers: Sequence[EndedAnswer], /) -> None:
        write, left_out = self._write, self._left_out
        lines = [write(line_of(each)) for each in answers if each.path not in left_out]
        if lines:
            self._logger.info("%s", "\n".join(lines))


def line_of(answer: EndedAnswer) -> Line:
    """Return the line of an answer that has ended."""
    status, record = answer.status, answer.record
    line = Line(
        stamp(answer.at),
        "info",
        LOGGER,
        answer.client,
        answer.method,
        answer.path[:_MAX_PATH],
        status,
        answer.outcome or _outcome_of(status),
        total_ms=_milliseconds(answer.seconds),
        bytes=answer.body_bytes,
        request_id=answer.request_id,
    )
    traceparent = answer.traceparent
    if traceparent is not None:
        line.trace_id = trace_id_of(traceparent)
    if record is not None:
        _tell(line, record)
    return line


def _tell(line: Line, record: Record) -> None:
    """Put into the line what the request's journey has found out."""
    line.model = _bounded(record.model)
    if record.target_model != record.model:
        line.target_model = _bounded(record.target_model)
    line.reason = record.reason
    target, usage = record.target, record.usage
    if target is not None:
        line.attempts = record.attempts
        line.continued = record.continued
        line.engine = target.endpoint.engine
        line.matched_blocks = target.matched_blocks
        line.prompt_blocks = target.prompt_blocks
    if record.prefill_seconds:
        line.prefill_ms = _milliseconds(record.prefill_seconds)
        if record.prefill_target is not None:
            line.prefill_engine = record.prefill_target.endpoint.engine
    if record.begun_at:
        line.ttft_ms = _milliseconds(record.begun_at - record.opened_at)
    if usage is not None:
        line.prompt_tokens = usage.prompt
        line.cached_tokens = usage.cached
        line.output_tokens = usage.completion


def _bounded(name: str) -> str:
    """Return the name cut off, and without halves of surrogate pairs, which UTF-8 cannot hold."""
    name = name[:_MAX_MODEL]
    return name if name.isascii() else name.encode(errors="backslashreplace").decode()


def _milliseconds(seconds: float) -> float:
    """Return the time in milliseconds, cut off at tenths; round() takes three times as long."""
    return int(seconds * 1e4) / 10


def _outcome_of(status: int) -> str:
    """Return the outcome of an answer that no journey knows of."""
    if status == CLIENT_GONE:
        return "client_gone"
    if status >= 500:
        return "error"
    return "refused" if status >= 400 else "ok"


_ENCODER = msgspec.json.Encoder()


def _json(line: Line) -> str:
    return _ENCODER.encode(line).decode()


def _text(line: Line) -> str:
    """Return the line as text, the fields in their order. A loop over them would take four times as
    long."""
    text = f"{_asked(line)} status={line.status} outcome={line.outcome}"
    if line.model:
        text += f" model={quoted(line.model)}"
    if line.target_model:
        text += f" target_model={quoted(line.target_model)}"
    if line.reason:
        text += f" reason={line.reason}"
    if line.engine:
        continued = f" continued={line.continued}" if line.continued else ""
        text += (
            f" engine={quoted(line.engine)} attempts={line.attempts}{continued}"
            f" matched_blocks={line.matched_blocks} prompt_blocks={line.prompt_blocks}"
        )
    if line.prefill_ms is not None:
        computed = f" prefill_engine={quoted(line.prefill_engine)}" if line.prefill_engine else ""
        text += f"{computed} prefill_ms={line.prefill_ms}"
    if line.ttft_ms is not None:
        text += f" ttft_ms={line.ttft_ms}"
    text += f" total_ms={line.total_ms}"
    if line.prompt_tokens is not None:
        text += f" prompt_tokens={line.prompt_tokens}"
    if line.cached_tokens is not None:
        text += f" cached_tokens={line.cached_tokens}"
    if line.output_tokens is not None:
        text += f" output_tokens={line.output_tokens}"
    if line.bytes is not None:
        text += f" bytes={line.bytes}"
    if line.request_id:
        text += f" request_id={quoted(line.request_id)}"
    return f"{text} trace_id={line.trace_id}" if line.trace_id else text


def _asked(line: Line) -> str:
    client = f" client={line.client}" if line.client else ""
    path = f" path={quoted(line.path)}" if line.path else ""
    return f"{line.time} INFO    {LOGGER}:{client} method={quoted(line.method)}{path}"
