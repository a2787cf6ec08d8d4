"""OpenTelemetry's spans of requests (extra `otel`; off unless `otlp` says where they go).

chat MODEL   server    from a complete request to the end of its answer; of paths that are no
                       operation of `gen_ai`: METHOD PATH
  decide     internal  until it was known where it goes, and why
  attempt    client    one for each engine that was tried; the engine is its child

Probes have none.
A span begins below the client's `traceparent`, or begins a trace; each engine is told the
attempt's. What is not valid is replaced, and its `tracestate` dropped (W3C trace context, section
4.3). Spans hold methods, paths, names, numbers and reasons: nothing of a body, a query or an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

from inferway import __version__
from inferway.errors import ConfigError
from inferway.frontends.http.access_log import PROBES
from inferway.frontends.http.gen_ai import OPERATIONS, attributes, max_tokens, span_name
from inferway.frontends.http.message import Request
from inferway.frontends.http.responder import Responder
from inferway.frontends.http.server import Handler
from inferway.frontends.http.trace_context import read_traceparent
from inferway.model import Decision, Headers, Target
from inferway.scheduling.plugin import Ending, Follower
from inferway.steps.journey import Journey

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

_TRACEPARENT, _TRACESTATE = b"traceparent", b"tracestate"
_MAX_PATH = 200
_KUBE = b"kube-probe/"


def otlp(endpoint: str) -> SpanProcessor:
    """Sends spans there, in batches, from a thread. Raises ConfigError."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as e:
        raise ConfigError(
            f"otlp: needs {e.name}: pip install 'inferway[otel]', or leave it out"
        ) from e
    return BatchSpanProcessor(OTLPSpanExporter(endpoint))


class Tracing:
    """A log of answers (server.AnswerLog) that has seen them begin. Where its spans go is
    `processor`'s matter; how many of them, OTEL_TRACES_SAMPLER's."""

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({"service.name": "inferway", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self.tracer = self._provider.get_tracer("inferway", __version__)
        self._spans: dict[Responder, Span] = {}  # of answers that have not ended

    def around(self, handler: Handler, known: Container[str]) -> Handler:
        """`handler`, with a span for each request. Paths that are not `known` name no span."""

        async def traced(request: Request, responder: Responder) -> None:
            if not _is_probe(request):
                self._begin(request, responder, request.path in known)
            await handler(request, responder)

        return traced

    def _begin(self, request: Request, responder: Responder, is_known: bool) -> None:
        from opentelemetry.trace import SpanKind

        path = request.path[:_MAX_PATH]
        span = self.tracer.start_span(
            f"{request.method} {path}" if is_known else request.method,
            context=_context_of(request),
            kind=SpanKind.SERVER,
            start_time=_nanoseconds_at(request.started),
            attributes={
                "http.request.method": request.method,
                "url.path": path,
                "inferway.request_id": request.id.decode(),
            },
        )
        self._spans[responder] = span
        _tell(request, span)

    def add(self, responder: Responder) -> None:
        """`responder` has ended."""
        span = self._spans.pop(responder, None)
        if span is None:
            return
        status = responder.status
        span.set_attribute("http.response.status_code", status)
        span.set_attribute("http.response.body.size", responder.body_bytes)
        operation, record = OPERATIONS.get(responder.request.path), responder.record
        if operation is not None and record is not None:
            span.update_name(span_name(operation, record))
            span.set_attributes(attributes(operation, record, status))
        if responder.engine != "-":
            span.set_attribute("inferway.engine", responder.engine)
        if status >= 500:
            span.set_attribute("error.type", str(status))
            _fail(span)
        span.end()

    def flush(self) -> None:
        """Spans are sent in their own time."""

    def follow(
        self, responder: Responder, journey: Journey, decision: Decision, seconds: float
    ) -> None:
        """A span for each attempt of `journey`; it took so long until it was decided."""
        from opentelemetry.trace import set_span_in_context

        span = self._spans.get(responder)
        if span is None:
            return
        context = set_span_in_context(span)
        now = time.time_ns()
        decided = self.tracer.start_span(
            "decide",
            context=context,
            start_time=now - int(seconds * 1e9),
            attributes={"inferway.reason": decision.reason},
        )
        decided.end(now)
        if journey.routed is not None:
            most = max_tokens(journey.routed.request.body)
            if most is not None:
                span.set_attribute("gen_ai.request.max_tokens", most)
        journey.listen(_AttemptSpans(self, context, journey.finish_reasons))

    async def close(self) -> None:
        """Sends what is left."""
        for span in self._spans.values():
            span.end()
        self._spans.clear()
        await asyncio.to_thread(self._provider.shutdown)


class _AttemptSpans(Follower):
    """A span for each attempt of a request."""

    __slots__ = ("_context", "_finish_reasons", "_span", "_tracing")

    def __init__(
        self, tracing: Tracing, context: Context, finish_reasons: Callable[[], Sequence[str]]
    ) -> None:
        self._finish_reasons = finish_reasons
        self._tracing = tracing
        self._context = context
        self._span: Span | None = None

    def on_attempt(self, target: Target, now: float) -> Headers:
        from opentelemetry.trace import SpanKind

        del now
        self._end("tried another")
        self._span = self._tracing.tracer.start_span(
            "attempt",
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes={
                "inferway.engine": target.endpoint.engine,
                "inferway.matched_blocks": target.matched_blocks,
                "inferway.prompt_blocks": target.prompt_blocks,
            },
        )
        return ((_TRACEPARENT, _written(self._span)),)

    def on_head(self, status: int) -> Headers:
        if self._span is not None:
            self._span.set_attribute("http.response.status_code", status)
        return ()

    def on_first_chunk(self, now: float) -> None:
        del now
        if self._span is not None:
            self._span.add_event("first chunk")

    def on_end(self, ending: Ending) -> None:
        from opentelemetry.trace import get_current_span

        reasons = self._finish_reasons()
        if reasons:
            request = get_current_span(self._context)
            request.set_attribute("gen_ai.response.finish_reasons", reasons)
        self._end(ending.outcome)

    def _end(self, outcome: str) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.set_attribute("inferway.outcome", outcome)
            if outcome not in ("ok", "client_gone"):
                _fail(span)
            span.end()


def _is_probe(request: Request) -> bool:
    """Of who asks every few seconds whether we are well, or for our numbers."""
    return request.path in PROBES or request.fields.get(b"user-agent", b"").startswith(_KUBE)


def _context_of(request: Request) -> Context | None:
    """The client's span; None begins a trace."""
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    parent = read_traceparent(request.fields.get(_TRACEPARENT))
    if parent is None:
        return Context()  # and not what happens to be current
    remote = SpanContext(
        parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(parent.flags)
    )
    return set_span_in_context(NonRecordingSpan(remote), Context())


def _tell(request: Request, span: Span) -> None:
    """Whoever gets this request knows of our span; `tracestate` is its parent's, or nobody's."""
    dropped = {_TRACEPARENT}
    if read_traceparent(request.fields.get(_TRACEPARENT)) is None:
        dropped.add(_TRACESTATE)
    written = _written(span)
    request.headers = [h for h in request.headers if h[0] not in dropped]
    request.headers.append((_TRACEPARENT, written))
    request.fields = {n: v for n, v in request.fields.items() if n not in dropped}
    request.fields[_TRACEPARENT] = written


def _written(span: Span) -> bytes:
    context = span.get_span_context()
    return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)


def _fail(span: Span) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR))


def _nanoseconds_at(started: float) -> int:
    """A moment of time.perf_counter() as a time of day."""
    return time.time_ns() - int((time.perf_counter() - started) * 1e9)
