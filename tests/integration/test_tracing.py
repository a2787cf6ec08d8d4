"""Spans: below the client's, one for each attempt, told to the engine, and without any prompt."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import grpc.aio
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.http.clients import connected, echo, get, serving
from tests.integration.conftest import answering
from tests.integration.recorders import Recorder, in_front_of
from tests.llmd.ext_proc.pods import rqb, rqh, rsb, rsh

from inferway.app import Gateway
from inferway.config import EngineSettings, PickerSettings, ServeSettings
from inferway.errors import ConfigError
from inferway.http.server import traced
from inferway.telemetry.tracing import Tracing, otlp
from inferway_llmd.ext_proc.messages import METHOD, SERVICE, ProcessingRequest
from inferway_llmd.extension import picker_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
SECRET = "what-nobody-else-should-read"
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": SECRET}]})


class Collector:
    """Where spans go; keeps them."""

    def __init__(self) -> None:
        self.raw = b""
        self.spans: list[Any] = []

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.raw += body
        told = ExportTraceServiceRequest.FromString(body)
        for resource in told.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return web.Response(body=b"", content_type="application/x-protobuf")

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture(autouse=True)
def no_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")


def attributes(span: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


async def test_a_request_is_a_trace_down_to_the_engine() -> None:
    collector = Collector()
    lost, engine = Recorder(status=503), Recorder()
    async with (
        answering(collector.handle) as url,
        in_front_of(lost, engine, otlp=url + "/v1/traces", scoring=False) as front,
    ):
        while not (lost.seen and engine.seen):
            await front.ask(
                "/v1/chat/completions?q=" + SECRET,
                CHAT.encode(),
                traceparent=PARENT,
                tracestate="vendor=1",
                x_request_id="mine",
            )
        # the gateway's end sends what is left

    requests = collector.named("chat m")
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert {span.parent_span_id.hex() for span in requests} == {SPAN}
    assert (
        attributes(requests[0]).items()
        >= {
            "http.response.status_code": 200,
            "inferway.engine": "e1",
            "inferway.request_id": "mine",
            "url.path": "/v1/chat/completions",
        }.items()
    )
    ids = {span.span_id for span in requests}
    attempts, decided = collector.named("attempt"), collector.named("decide")
    assert {span.parent_span_id for span in (*attempts, *decided)} == ids
    assert attributes(decided[0]) == {"inferway.reason": "load-only"}
    (failed,) = [span for span in attempts if attributes(span)["inferway.engine"] == "e0"]
    assert (attributes(failed)["inferway.outcome"], failed.status.code) == ("tried another", 2)
    told = {seen.headers["traceparent"] for seen in (*lost.seen, *engine.seen)}
    assert told == {f"00-{TRACE}-{span.span_id.hex()}-01" for span in attempts}
    assert engine.seen[0].headers["tracestate"] == "vendor=1"
    assert SECRET.encode() not in collector.raw


ANSWER = json.dumps(
    {
        "model": "m",
        "choices": [{"finish_reason": "stop", "message": {"content": SECRET}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 4},
    }
)


async def test_a_chat_s_span_has_the_conventions_names_for_models_and_tokens() -> None:
    collector, engine = Collector(), Recorder(answer=ANSWER.encode())
    body = json.loads(CHAT) | {"max_tokens": 7}
    async with (
        answering(collector.handle) as url,
        in_front_of(engine, otlp=url + "/v1/traces", scoring=False) as front,
    ):
        while not engine.seen:
            await front.ask("/v1/chat/completions", json.dumps(body).encode())
        await front.ask("/v1/chat/completions", CHAT.replace('"m"', f'"{SECRET}"').encode())

    told = attributes(collector.named("chat m")[-1])
    reasons = told.pop("gen_ai.response.finish_reasons")
    assert [value.string_value for value in reasons.values] == ["stop"]
    assert {name: told[name] for name in told if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 4,
    }
    unknown = collector.named("chat")[-1]
    assert "gen_ai.request.model" not in attributes(unknown)
    assert SECRET.encode() not in collector.raw


async def test_a_pick_s_spans_go_to_the_same_place() -> None:
    collector, engine = Collector(), Recorder()
    async with answering(collector.handle) as url, answering(engine.handle) as engine_url:
        settings = ServeSettings(
            engines=[EngineSettings(url=engine_url, name="e0")],
            port=0,
            access_log=None,
            scoring=False,
            otlp=url + "/v1/traces",
            picker=PickerSettings(grpc_port=0, grpc_health_port=0, secure=False),
        )
        gateway = Gateway(settings, picks=True)
        await gateway.start()
        picker = picker_of(gateway)
        assert picker is not None
        async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.port}") as channel:
            call = channel.stream_stream(
                f"/{SERVICE}/{METHOD}", ProcessingRequest.SerializeToString
            )()
            path, parent = (":path", "/v1/chat/completions"), ("traceparent", PARENT)
            for message in (
                *(rqh(path, parent), rqb(CHAT.encode(), eos=True)),
                *(rsh((":status", "200")), rsb(ANSWER.encode(), eos=True)),
            ):
                await call.write(message)
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        await gateway.close()  # sends what is left

    [request], [attempt] = collector.named("chat m"), collector.named("attempt")
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, SPAN)
    assert attempt.parent_span_id == request.span_id
    assert attributes(attempt)["inferway.engine"] == "e0"
    assert attributes(request)["gen_ai.usage.output_tokens"] == 4
    assert SECRET.encode() not in collector.raw


async def test_probes_have_no_spans() -> None:
    collector, engine = Collector(), Recorder()
    async with (
        answering(collector.handle) as url,
        in_front_of(engine, otlp=url + "/v1/traces") as front,
    ):
        for path in ("/health", "/ready", "/metrics"):
            await front.ask(path, method="GET")
        await front.ask("/v1/models", method="GET", user_agent="kube-probe/1.31")
        await front.ask("/v1/models", method="GET")

    assert [span.name for span in collector.spans] == ["GET /v1/models"]


async def test_without_spans_the_client_s_context_travels_on_as_it_came() -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        for given in ({"traceparent": PARENT, "tracestate": "a=1"}, {}):
            await front.ask("/tokenize", b'{"model": "m"}', **given)

    first, second = (seen.headers for seen in engine.seen)
    assert (first["traceparent"], first["tracestate"]) == (PARENT, "a=1")
    assert "traceparent" not in second


@pytest.fixture
def memory() -> tuple[Tracing, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return Tracing(SimpleSpanProcessor(exporter)), exporter


def span_names(exporter: InMemorySpanExporter) -> Sequence[str]:
    return [span.name for span in exporter.get_finished_spans()]


async def test_a_trace_begins_here_where_none_has_begun(
    memory: tuple[Tracing, InMemorySpanExporter],
) -> None:
    tracing, exporter = memory
    seen: list[dict[bytes, bytes]] = []

    async def noting(request: Any, responder: Any) -> None:
        seen.append(dict(request.headers))
        await echo(request, responder)

    handler = traced(noting, tracing, {"/known"})
    async with serving(handler, extensions=[tracing]) as server, connected(server) as client:
        await client.ask(get(b"/known"))
        await client.ask(get(b"/" + SECRET.encode(), b"traceparent: 00-bad", b"tracestate: a=1"))

    first, second = exporter.get_finished_spans()
    assert span_names(exporter) == ["GET /known", "GET"]
    assert (first.parent, second.parent) == (None, None)
    for headers, span in zip(seen, (first, second), strict=True):
        context = span.context
        assert context is not None
        flags = int(context.trace_flags)  # sampled; and that its id is random (level 2)
        assert flags & 1
        written = f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"
        assert headers[b"traceparent"] == written.encode()
        assert b"tracestate" not in headers


async def test_answers_that_end_otherwise_end_their_spans(
    memory: tuple[Tracing, InMemorySpanExporter],
) -> None:
    tracing, exporter = memory

    async def failing(_: Any, __: Any) -> None:
        raise RuntimeError(SECRET)

    async def waiting(_: Any, __: Any) -> None:
        await asyncio.Event().wait()

    refused = traced(failing, tracing, ())
    async with serving(refused, extensions=[tracing]) as server, connected(server) as client:
        assert (await client.ask(get())).status == 500
    async with serving(traced(waiting, tracing, ()), extensions=[tracing]) as server:
        async with connected(server) as client:
            await client.send(get())
            while not server.stats.answering:
                await asyncio.sleep(0)
        while server.stats.answering:
            await asyncio.sleep(0)

    failed, gone = exporter.get_finished_spans()
    assert not failed.status.is_ok
    assert failed.events == ()
    assert failed.attributes is not None
    assert gone.attributes is not None
    assert SECRET not in str(failed.attributes)
    assert gone.attributes["http.response.status_code"] == 499


def test_without_the_extra_one_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    with pytest.raises(ConfigError, match=r"pip install 'inferway\[otel\]'"):
        otlp("http://127.0.0.1:4318/v1/traces")


async def test_without_the_extra_a_gateway_refuses_before_anything_is_opened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    caplog.set_level(logging.INFO)
    settings = ServeSettings(
        engines=[EngineSettings(url="http://127.0.0.1:1")], otlp="http://127.0.0.1:4318/v1/traces"
    )

    with pytest.raises(ConfigError, match=r"pip install 'inferway\[otel\]'"):
        await Gateway(settings).start()

    assert caplog.messages == []


def test_a_gateway_without_tracing_loads_nothing_of_it() -> None:
    code = (
        "import sys; import inferway.app;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "[]"
