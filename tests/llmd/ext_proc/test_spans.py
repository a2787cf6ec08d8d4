"""Spans of picks: below the client's, and each engine that the proxy is told gets the attempt's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.llmd.ext_proc.pods import rqb, rqh, rsb, rsh
from tests.llmd.ext_proc.test_server import Running

from inferway.telemetry.tracing import Tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = ("traceparent", f"00-{TRACE}-{SPAN}-01")
STATE = ("tracestate", "vendor=1")
SECRET = "what-nobody-else-should-read"
CHAT = (":path", f"/v1/chat/completions?q={SECRET}")
BODY = b'{"model":"m","max_tokens":7,"messages":[{"role":"user","content":"%b"}]}' % SECRET.encode()
ANSWER = b'{"usage":{"prompt_tokens":9,"completion_tokens":4},"choices":[{"finish_reason":"stop"}]}'


class Traced:
    """A picker whose spans are kept."""

    def __init__(self, running: Running, exporter: InMemorySpanExporter) -> None:
        self.running = running
        self.exporter = exporter

    async def send(self, *messages: Any) -> list[Any]:
        """One stream, which ends with them; what it was answered, once the picker has ended it."""
        call = self.running.process()
        for message in messages:
            await call.write(message)
        await call.done_writing()
        answers = []
        while (answer := await call.read()) is not grpc.aio.EOF:
            answers.append(answer)
        return answers

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
async def traced() -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter))
    async with Running(extensions=[tracing], tracing=tracing) as running:
        yield Traced(running, exporter)


def mutation(answer: Any) -> tuple[dict[str, str], list[str]]:
    """The headers that the engine gets, and those that it does not."""
    told = answer.request_headers.response.header_mutation
    set_headers = {each.header.key: each.header.raw_value.decode() for each in told.set_headers}
    return set_headers, list(told.remove_headers)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    assert span.attributes is not None
    return dict(span.attributes)


async def test_a_pick_is_a_trace_down_to_the_engine(traced: Traced) -> None:
    head, *_ = await traced.send(
        rqh((":method", "POST"), CHAT, ("x-request-id", "mine"), PARENT, STATE),
        rqb(BODY, eos=True),
        rsh((":status", "200"), ("content-type", "application/json")),
        rsb(ANSWER, eos=True),
    )

    [request], [decided], [attempt] = map(traced.named, ("chat m", "decide", "attempt"))
    assert request.parent is not None
    assert request.context is not None
    assert attempt.context is not None
    assert f"{request.parent.trace_id:032x}-{request.parent.span_id:016x}" == f"{TRACE}-{SPAN}"
    for child in (decided, attempt):
        assert child.parent is not None
        assert child.parent.span_id == request.context.span_id
    told, removed = mutation(head)
    assert told["traceparent"] == f"00-{TRACE}-{attempt.context.span_id:016x}-01"
    assert "tracestate" not in {*told, *removed}
    assert attributes(request) == {
        "http.request.method": "POST",
        "http.response.body.size": len(ANSWER),
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.model": "m",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.model": "m",
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 4,
        "inferway.engine": "10.0.0.2:8000",
        "inferway.request_id": "mine",
        "url.path": "/v1/chat/completions",
    }
    assert attributes(decided) == {"inferway.reason": "no-block-size"}
    assert attributes(attempt)["inferway.outcome"] == "ok"
    assert SECRET not in str([span.to_json() for span in traced.exporter.get_finished_spans()])


async def test_a_trace_begins_here_where_none_has_begun(traced: Traced) -> None:
    bad = ("traceparent", "00-bad")
    head, *_ = await traced.send(rqh(CHAT, bad, STATE), rqb(BODY, eos=True))

    [request], [attempt] = traced.named("chat m"), traced.named("attempt")
    assert request.parent is None
    assert attempt.context is not None
    told, removed = mutation(head)
    assert told["traceparent"].split("-")[1] == f"{attempt.context.trace_id:032x}"
    assert "tracestate" in removed


async def test_what_carries_no_prompt_has_a_span_and_a_path_of_a_client_s_own_does_not_name_it(
    traced: Traced,
) -> None:
    answered = (rsh((":status", "200")), rsb(b"{}", eos=True))
    get = (":method", "GET")
    await traced.send(rqh(get, (":path", f"/{SECRET}"), eos=True), *answered)
    await traced.send(rqh((":path", "/tokenize")), rqb(b'{"model":"m"}', eos=True), *answered)

    unknown, tokenize = traced.named("GET")[0], traced.named("POST /tokenize")[0]
    assert [attributes(each)["http.response.status_code"] for each in (unknown, tokenize)] == [
        200,
        200,
    ]
    assert len(traced.named("attempt")) == 2


async def test_an_engine_that_the_proxy_chose_instead_has_the_second_attempt(
    traced: Traced,
) -> None:
    served = {"envoy.lb": {"x-gateway-destination-endpoint-served": "10.0.0.1:8000"}}

    await traced.send(
        rqh(CHAT), rqb(BODY, eos=True), rsh((":status", "200"), eos=True, meta=served)
    )

    told = [attributes(span) for span in traced.named("attempt")]
    assert [each["inferway.engine"] for each in told] == ["10.0.0.2:8000", "10.0.0.1:8000"]
    assert [each["inferway.outcome"] for each in told] == ["tried another", "ok"]


async def test_a_refused_request_s_span_has_failed_and_a_gone_client_s_says_so(
    traced: Traced,
) -> None:
    await traced.send(rqh(CHAT), rqb(BODY, eos=True))
    traced.running.stream.fleet.endpoints.clear()
    await traced.send(rqh(CHAT), rqb(BODY, eos=True))

    gone, refused = traced.named("chat m")
    assert attributes(gone)["http.response.status_code"] == 499
    assert attributes(refused)["error.type"] == "503"
    assert not refused.status.is_ok


async def test_probes_have_no_spans(traced: Traced) -> None:
    answered = rsh((":status", "200"), eos=True)
    await traced.send(rqh((":path", "/health"), eos=True), answered)
    kubelet = ("user-agent", "kube-probe/1.31")
    await traced.send(rqh((":path", "/v1/models"), kubelet, eos=True), answered)

    assert traced.exporter.get_finished_spans() == ()


async def test_without_spans_the_client_s_context_travels_on_as_it_came() -> None:
    async with Running() as running:
        stream = Traced(running, InMemorySpanExporter())
        head, *_ = await stream.send(rqh(CHAT, PARENT, STATE), rqb(BODY, eos=True))

    told, removed = mutation(head)
    assert not {"traceparent", "tracestate"} & {*told, *removed}
