"""Both legs of a request are spans below the request's, and each engine is told its own."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inferway.model import Endpoint, Headers, Target
from inferway.scheduling.plugin import RequestOutcome
from inferway.telemetry.tracing import RequestSpan, Tracing

DECODE, PREFILL = (Target(Endpoint(name, f"http://{name}", 0), 1.0, 0, 0) for name in "dp")


def begun() -> tuple[RequestSpan, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter))
    return tracing.begin("POST", "/", "id", None, 0.0, is_known=True), exporter


def span_ids(*headers: Headers) -> list[bytes]:
    return [value.split(b"-")[2] for each in headers for _, value in each]


def told(spans: Sequence[ReadableSpan]) -> list[tuple[str, object, object]]:
    found = [(each.name, each.attributes or {}) for each in spans]
    return [(name, a["inferway.engine"], a["inferway.outcome"]) for name, a in found]


def test_one_leg_after_the_other() -> None:
    span, exporter = begun()
    one = span.on_prefill(PREFILL, 0.0)
    span.on_prefilled(1.0, None, moved=True)
    two = span.on_attempt(DECODE, 1.0)
    span.on_end(RequestOutcome("ok", 2.0))

    spans = exporter.get_finished_spans()
    assert told(spans) == [("prefill", "p", "ok"), ("attempt", "d", "ok")]
    ids = [b"%016x" % each.context.span_id for each in spans if each.context is not None]
    assert span_ids(one, two) == ids


def test_both_at_once_and_one_after_a_failure() -> None:
    span, exporter = begun()
    span.on_prefill(PREFILL, 0.0)
    span.on_attempt(DECODE, 0.0)
    span.on_prefilled(1.0, None, moved=False)
    span.on_attempt(DECODE, 1.0)
    span.on_end(RequestOutcome("client_gone", 2.0))

    assert told(exporter.get_finished_spans()) == [
        ("prefill", "p", "not moved"),
        ("attempt", "d", "tried another"),
        ("attempt", "d", "client_gone"),
    ]
