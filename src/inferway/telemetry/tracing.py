"""OpenTelemetry's spans of requests (extra `otel`; off unless `otlp` says where they go).

chat MODEL   server    from a complete request to the end of its answer; of paths that are no
                       operation of generative AI: METHOD PATH
  decide     internal  until it was known where it goes, and why
  prefill    client    one for each engine that was asked to compute the prompt for another one
  attempt    client    one for each engine that was tried, or that a proxy was told; the engine is
                       its child

Probes have none.
A span begins below the client's `traceparent`, or begins a trace; each engine is told the
attempt's. What is not valid is replaced, and its `tracestate` dropped (W3C trace context, section
4.3). Spans hold methods, paths, names, numbers and reasons: nothing of a body, a query or an error.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from inferway import __version__
from inferway.errors import ConfigError
from inferway.extension import EndedAnswer, Extension
from inferway.model import Headers, Target
from inferway.openai_api.kinds import KINDS
from inferway.openai_api.usage import Usage
from inferway.routing.journey import Journey
from inferway.routing.record import Record
from inferway.scheduling.plugin import RequestListener, RequestOutcome

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
_MAX_PATH = 200

_OPERATIONS = [(kind.path, kind.operation) for kind in KINDS.values() if kind.operation]

Attributes = dict[str, str | int | Sequence[str]]


def otlp(endpoint: str) -> SpanProcessor:
    """Return what sends spans to `endpoint`, in batches, from a thread. Raises ConfigError."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as e:
        raise ConfigError(
            f"otlp: needs {e.name}: pip install 'inferway[otel]', or leave it out"
        ) from e
    return BatchSpanProcessor(OTLPSpanExporter(endpoint))


class Tracing(Extension):
    """Begins requests' spans, and ends them with their answers. Where they
    go is `processor`'s matter; how many of them, OTEL_TRACES_SAMPLER's."""

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({"service.name": "inferway", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self.tracer = self._provider.get_tracer("inferway", __version__)
        self._open: set[RequestSpan] = set()

    def begin(
        self,
        method: str,
        path: str,
        request_id: str,
        traceparent: bytes | None,
        seconds: float,
        *,
        is_known: bool,
    ) -> RequestSpan:
        """Return the span of a request that was complete so many seconds ago: below the span that
        `traceparent` names, or as the first of a trace. A path that is not `is_known` is in no
        span's name."""
        from opentelemetry.trace import SpanKind

        path = path[:_MAX_PATH]
        parent = read_traceparent(traceparent)
        span = self.tracer.start_span(
            f"{method} {path}" if is_known else method,
            context=_below(parent),
            kind=SpanKind.SERVER,
            start_time=time.time_ns() - int(seconds * 1e9),
            attributes={
                "http.request.method": method,
                "url.path": path,
                "inferway.request_id": request_id,
            },
        )
        begun = RequestSpan(self, span, is_root=parent is None)
        self._open.add(begun)
        return begun

    def on_answers(self, answers: Sequence[EndedAnswer], /) -> None:
        """End the spans of answers that have ended."""
        for answer in answers:
            if answer.span is not None:
                self._open.discard(answer.span)
                answer.span.end(answer)

    async def close(self) -> None:
        """End the spans that are still open, and send what is left."""
        for span in self._open:
            span.cut()
        self._open.clear()
        await asyncio.to_thread(self._provider.shutdown)


class RequestSpan(RequestListener):
    """The span of one request, and those below it: `decide`, and one for each attempt."""

    __slots__ = (
        "_attempt",
        "_context",
        "_finish_reasons",
        "_prefill",
        "_span",
        "_tracing",
        "is_root",
    )

    def __init__(self, tracing: Tracing, span: Span, *, is_root: bool) -> None:
        from opentelemetry.trace import set_span_in_context

        self.is_root = is_root  # the trace begins with it
        self._tracing = tracing
        self._span = span
        self._context = set_span_in_context(span)
        self._prefill: Span | None = None
        self._attempt: Span | None = None
        self._finish_reasons: Callable[[], Sequence[str]] = lambda: ()

    @property
    def traceparent(self) -> bytes:
        """The header that tells of this span."""
        return _written(self._span)

    def follow(self, journey: Journey) -> None:
        """Make spans of a journey that has just been decided, and of its attempts to come."""
        record = journey.record
        now = time.time_ns()
        decided = self._tracing.tracer.start_span(
            "decide",
            context=self._context,
            start_time=now - int(record.decided_in * 1e9),
            attributes={"inferway.reason": record.reason},
        )
        decided.end(now)
        if journey.routed is not None:
            most = journey.routed.request.body.answer_limit
            if most is not None:
                self._span.set_attribute("gen_ai.request.max_tokens", most)
        self._finish_reasons = journey.finish_reasons
        journey.listen(self)

    def on_prefill(self, target: Target, now: float) -> Headers:
        del now
        self._end_attempt(self._prefill, "tried another")
        self._prefill, header = self._begin_attempt("prefill", target)
        return header

    def on_prefilled(self, now: float, usage: Usage | None, *, moved: bool) -> None:
        del now, usage
        self._end_attempt(self._prefill, "ok" if moved else "not moved")
        self._prefill = None

    def on_attempt(self, target: Target, now: float) -> Headers:
        del now
        self._end_attempt(self._attempt, "tried another")
        self._attempt, header = self._begin_attempt("attempt", target)
        return header

    def _begin_attempt(self, name: str, target: Target) -> tuple[Span, Headers]:
        from opentelemetry.trace import SpanKind

        span = self._tracing.tracer.start_span(
            name,
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes={
                "inferway.engine": target.endpoint.engine,
                "inferway.matched_blocks": target.matched_blocks,
                "inferway.prompt_blocks": target.prompt_blocks,
            },
        )
        return span, ((TRACEPARENT, _written(span)),)

    def on_head(self, status: int) -> Headers:
        if self._attempt is not None:
            self._attempt.set_attribute("http.response.status_code", status)
        return ()

    def on_first_chunk(self, now: float) -> None:
        del now
        if self._attempt is not None:
            self._attempt.add_event("first chunk")

    def on_end(self, ending: RequestOutcome) -> None:
        reasons = self._finish_reasons()
        if reasons:
            self._span.set_attribute("gen_ai.response.finish_reasons", reasons)
        for span in (self._prefill, self._attempt):
            self._end_attempt(span, ending.outcome)
        self._prefill = self._attempt = None

    def _end_attempt(self, span: Span | None, outcome: str) -> None:
        if span is not None:
            span.set_attribute("inferway.outcome", outcome)
            if outcome not in ("ok", "client_gone"):
                _fail(span)
            span.end()

    def end(self, answer: EndedAnswer) -> None:
        """`answer` has ended, and is the request's."""
        span, status, record = self._span, answer.status, answer.record
        span.set_attribute("http.response.status_code", status)
        if answer.body_bytes is not None:
            span.set_attribute("http.response.body.size", answer.body_bytes)
        operation = _operation_of(answer.path)
        if record is not None and operation is not None:
            name = record.known_model  # another is a client's text, and has no place in a name
            span.update_name(f"{operation} {name}" if name else operation)
            span.set_attributes(_gen_ai(operation, record, status))
        if record is not None and record.target is not None:
            span.set_attribute("inferway.engine", record.target.endpoint.engine)
        if status >= 500:
            span.set_attribute("error.type", str(status))
            _fail(span)
        span.end(int(answer.at * 1e9))

    def cut(self) -> None:
        """End the span as it is: there is no word of how the answer ended."""
        self._span.end()


def _operation_of(path: str) -> str | None:
    """A proxy's path may have a prefix."""
    return next((name for known, name in _OPERATIONS if path.endswith(known)), None)


def _gen_ai(operation: str, record: Record, status: int) -> Attributes:
    """Return what the span of a request that has ended says of its model and tokens, in the names
    of OpenTelemetry's conventions for generative AI."""
    found: Attributes = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "vllm"}
    if record.known_model:
        found["gen_ai.request.model"] = record.known_model
    if record.known_model and status == 200:
        found["gen_ai.response.model"] = record.target_model
    usage = record.usage
    if usage is not None:
        found["gen_ai.usage.input_tokens"] = usage.prompt
        found["gen_ai.usage.output_tokens"] = usage.completion
        if usage.cached is not None:
            found["gen_ai.usage.cache_read.input_tokens"] = usage.cached
    return found


def _fail(span: Span) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR))


# ---------------------------------------------------------------- W3C trace context, level 1

# version - trace id - parent id - flags; later versions may have more behind (section 3.2.2)
_TRACEPARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Parent(NamedTuple):
    """The caller's span, as a `traceparent` header names it."""

    trace_id: int
    span_id: int
    flags: int


def read_traceparent(value: bytes | None) -> Parent | None:
    """Return what the header says; None where there is none that is valid: a trace begins here."""
    found = None if value is None else _TRACEPARENT.fullmatch(value.strip())
    if found is None or (found[1] == b"00" and found[5] is not None):
        return None
    parent = Parent(int(found[2], 16), int(found[3], 16), int(found[4], 16))
    return parent if parent.trace_id and parent.span_id else None


def trace_id_of(value: bytes | None) -> str:
    """Return the trace's id in hexadecimal digits; empty where there is no valid header."""
    parent = read_traceparent(value)
    return "" if parent is None else f"{parent.trace_id:032x}"


def _below(parent: Parent | None) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    if parent is None:
        return Context()  # and not what happens to be current
    remote = SpanContext(
        parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(parent.flags)
    )
    return set_span_in_context(NonRecordingSpan(remote), Context())


def _written(span: Span) -> bytes:
    context = span.get_span_context()
    return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)
