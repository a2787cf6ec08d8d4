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
from functools import lru_cache

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
        lines = [write(each) for each in answers if each.path not in left_out]
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


def _json(answer: EndedAnswer) -> str:
    return _ENCODER.encode(line_of(answer)).decode()


def _text(answer: EndedAnswer) -> str:
    """Return the line of an answer as text: the fields of `line_of`, in their order. A loop over
    these would take six times as long."""
    status, record, size = answer.status, answer.record, answer.body_bytes
    decided, tokens = ("", "") if record is None else _told(record)
    trace = "" if answer.traceparent is None else trace_id_of(answer.traceparent)
    return (
        f"{stamp(answer.at)} INFO    {LOGGER}:"
        f"{_asked(answer.client, answer.method, answer.path[:_MAX_PATH])}"
        f" status={status} outcome={answer.outcome or _outcome_of(status)}{decided}"
        f" total_ms={_milliseconds(answer.seconds)}{tokens}"
        f"{'' if size is None else f' bytes={size}'}"
        f"{f' request_id={quoted(answer.request_id)}' if answer.request_id else ''}"
        f"{f' trace_id={trace}' if trace else ''}"
    )


@lru_cache(maxsize=1024)
def _asked(client: str, method: str, path: str) -> str:
    by = f" client={client}" if client else ""
    return f"{by} method={quoted(method)}{f' path={quoted(path)}' if path else ''}"


def _told(record: Record) -> tuple[str, str]:
    """Return what the request's journey has found out: the fields before `total_ms`, and those
    behind it."""
    target, usage, prefill_ms = record.target, record.usage, record.prefill_seconds
    decided = _routed(
        record.model[:_MAX_MODEL],
        "" if record.target_model == record.model else record.target_model[:_MAX_MODEL],
        record.reason,
        "" if target is None else target.endpoint.engine,
    )
    if target is not None:
        continued = f" continued={record.continued}" if record.continued else ""
        decided += (
            f" attempts={record.attempts}{continued}"
            f" matched_blocks={target.matched_blocks} prompt_blocks={target.prompt_blocks}"
        )
    if prefill_ms:
        engine = record.prefill_target
        by = "" if engine is None else f" prefill_engine={quoted(engine.endpoint.engine)}"
        decided += f"{by} prefill_ms={_milliseconds(prefill_ms)}"
    if record.begun_at:
        decided += f" ttft_ms={_milliseconds(record.begun_at - record.opened_at)}"
    if usage is None:
        return decided, ""
    cached = "" if usage.cached is None else f" cached_tokens={usage.cached}"
    return decided, f" prompt_tokens={usage.prompt}{cached} output_tokens={usage.completion}"


@lru_cache(maxsize=1024)
def _routed(model: str, target_model: str, reason: str, engine: str) -> str:
    parts = (
        f" model={quoted(_bounded(model))}" if model else "",
        f" target_model={quoted(_bounded(target_model))}" if target_model else "",
        f" reason={reason}" if reason else "",
        f" engine={quoted(engine)}" if engine else "",
    )
    return "".join(parts)
