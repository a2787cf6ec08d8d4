"""What passes through a real Envoy, picked by us (extproc.md, section 1: what is marked [env])."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from typing import Any

import aiohttp
import msgspec
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.envoy.conftest import COMPLETION, Proxied, StartProxied
from tests.envoy.proxy import Config, cluster, filters, manager, picker_filter, shipped
from tests.envoy.upstreams import answers, digest, refuses, streams

from inferway.config import ModelRewrite, RewriteTarget
from inferway.routing.rewrite import Rewrites
from inferway.telemetry.access_log import AccessLog
from inferway.telemetry.tracing import Tracing
from inferway_llmd.ext_proc import tls

pytestmark = pytest.mark.envoy

FILTERS = "type.googleapis.com/envoy.extensions.filters.http"


async def post(
    proxied: Proxied,
    body: bytes = COMPLETION,
    path: str = "/v1/completions",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    data = BytesIO(body)  # of bytes as large as these aiohttp warns
    async with proxied.http.post(proxied.url + path, data=data, headers=headers) as response:
        return response.status, dict(response.headers), await response.read()


def prompt_of(size: int) -> bytes:
    text = os.urandom(size // 2).hex().encode()
    return b'{"model":"m","prompt":"%b"}' % text[: max(0, size - 26)]


@pytest.mark.parametrize("size", [26, 61_999, 62_000, 62_001, 130_000, 1_000_000, 20_000_000])
async def test_a_body_arrives_as_it_was_sent(start: StartProxied, size: int) -> None:
    proxied = await start()
    body = prompt_of(size)

    status, headers, answer = await post(proxied, body)

    assert status == 200
    assert headers["x-went-into-resp-headers"] == "true"
    told = msgspec.json.decode(answer)
    assert (told["bytes"], told["sha256"]) == (len(body), sha256(body).hexdigest())
    assert proxied.booked == []
    assert proxied.outcomes == {"ok": 1}


@pytest.mark.parametrize("size", [0, 1, 62_001, 5_000_000])
async def test_an_answer_arrives_as_it_was_sent(start: StartProxied, size: int) -> None:
    proxied = await start(answers(size))

    status, _, answer = await post(proxied)

    assert (status, answer) == (200, b"y" * size)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
async def test_a_request_without_a_body_goes_to_somebody(start: StartProxied, method: str) -> None:
    proxied = await start()

    for _ in range(20):
        async with proxied.http.request(method, proxied.url + "/v1/models") as response:
            assert response.status == 200
            assert bool(await response.read()) == (method != "HEAD")

    assert {came.method for came in proxied.upstreams[0].came} == {method}


async def test_a_body_of_no_prompt_passes_unread(start: StartProxied) -> None:
    proxied = await start()

    for _ in range(50):  # of 300, 105 were answered with nothing while we closed the stream early
        body = b"\xff\xfb" + os.urandom(300_000)  # MP3: one that begins with { would be read
        _, _, answer = await post(proxied, body, "/v1/audio/transcriptions")

        assert msgspec.json.decode(answer)["sha256"] == sha256(body).hexdigest()


async def test_what_a_client_says_of_the_destination_does_not_count(start: StartProxied) -> None:
    proxied = await start(digest, answers(3))
    forged = proxied.upstreams[1].address

    _, _, answer = await post(
        proxied,
        headers={
            "x-gateway-destination-endpoint": forged,
            "x-prefiller-host-port": forged,
            "x-inferway-engine": "mine",
        },
    )

    assert answer != b"yyy"
    [came] = proxied.upstreams[0].came
    assert came.headers["x-gateway-destination-endpoint"] == proxied.upstreams[0].address
    assert not {"x-prefiller-host-port", "x-inferway-engine"} & came.headers.keys()
    assert len(came.headers["x-request-id"]) >= 32


async def test_a_rewritten_model_is_put_back_in_the_answer(start: StartProxied) -> None:
    rules = [ModelRewrite(models=["m"], targets=[RewriteTarget(model="v2")])]
    proxied = await start(rewrites=Rewrites(rules))

    _, _, answer = await post(proxied)

    [came] = proxied.upstreams[0].came
    assert msgspec.json.decode(came.body) == {"model": "v2", "prompt": "hello"}
    assert msgspec.json.decode(answer)["model"] == "m"


async def test_events_keep_their_pace(start: StartProxied) -> None:
    go = asyncio.Semaphore(0)
    proxied = await start(streams(4, go))

    async with proxied.http.post(proxied.url + "/v1/completions", data=COMPLETION) as response:
        for number in range(4):
            go.release()
            # the next one is not sent before this one has come
            event = await response.content.readuntil(b"\n\n")
            assert msgspec.json.decode(event[6:])["n"] == number
        assert await response.content.readuntil(b"\n\n") == b"data: [DONE]\n\n"


async def test_a_client_that_goes_in_the_middle_frees_its_slot(start: StartProxied) -> None:
    go = asyncio.Semaphore(1)
    proxied = await start(streams(9, go))
    async with proxied.http.post(proxied.url + "/v1/completions", data=COMPLETION) as response:
        await response.content.readuntil(b"\n\n")
        assert proxied.booked == [proxied.upstreams[0].address]
        response.close()

    await freed(proxied)

    assert proxied.outcomes == {"client_gone": 1}
    await proxied.upstreams[0].cancelled.wait()


async def test_a_client_that_goes_while_its_body_is_sent_leaves_nothing(
    start: StartProxied,
) -> None:
    proxied = await start()
    reader, writer = await asyncio.open_connection(*proxied.url.removeprefix("http://").split(":"))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 99999\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    del reader

    status, _, _ = await post(proxied)

    assert status == 200
    assert proxied.outcomes == {"ok": 1}
    assert proxied.booked == []


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, b"inference error: BadRequest - "),
        (b'{"prompt":"p"}', 400, b"model not found in request body"),
        (b'{"model":"m"}', 400, b"must have prompt field"),
        (b'{"model":"m","prompt":"' + b"x" * 2_000_001, 413, b"over the limit of 2000000 bytes"),
    ],
)
async def test_a_bad_request_is_answered_and_reaches_nobody(
    start: StartProxied, body: bytes, status: int, words: bytes
) -> None:
    proxied = await start(max_body_bytes=2_000_000)

    got, _, answer = await post(proxied, body)

    assert got == status
    assert words in answer
    assert proxied.upstreams[0].came == []


async def test_request_trailers_end_a_body(start: StartProxied) -> None:
    def trailers(config: Config) -> None:
        listener = config["static_resources"]["listeners"][0]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_protocol_options"] = {"enable_trailers": True}

    proxied = await start(change=trailers)
    host, port = proxied.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n"
        b"trailer: x-t\r\nconnection: close\r\n\r\n"
        b"%x\r\n%b\r\n0\r\nx-t: 1\r\n\r\n" % (len(COMPLETION), COMPLETION)
    )

    answer = await reader.read()
    writer.close()

    assert answer.startswith(b"HTTP/1.1 200")
    assert proxied.upstreams[0].came[0].body == COMPLETION


async def test_a_thousand_requests_at_once_and_none_fails(start: StartProxied) -> None:
    proxied = await start(digest, digest)
    limit = asyncio.Semaphore(64)

    async def one(number: int) -> None:
        async with limit:
            body = b'{"model":"m","prompt":"%d %b"}' % (number, b"x" * (number * 37 % 9000))
            status, _, answer = await post(proxied, body)
            assert status == 200
            assert msgspec.json.decode(answer)["sha256"] == sha256(body).hexdigest()

    async with asyncio.TaskGroup() as tasks:
        for number in range(1000):
            tasks.create_task(one(number))

    assert proxied.outcomes == {"ok": 1000}
    assert proxied.booked == []


async def test_a_picker_that_dies_and_comes_back_is_found_again(start: StartProxied) -> None:
    proxied = await start()
    assert (await post(proxied))[0] == 200

    await proxied.picker.stop(0)
    assert (await post(proxied))[0] in (500, 503)
    await proxied.picker.start()

    while (await post(proxied))[0] != 200:
        await asyncio.sleep(0.05)  # Envoy's own pause between two tries to connect


async def test_the_way_to_the_picker_may_be_encrypted(start: StartProxied) -> None:
    def encrypted(config: Config) -> None:
        context = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
        cluster(config, "picker")["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": context, "common_tls_context": {"alpn_protocols": ["h2"]}},
        }

    proxied = await start(change=encrypted, credentials=tls.PickerCertificate(None))

    assert (await post(proxied))[0] == 200


async def test_envoy_finds_the_picker_healthy(start: StartProxied) -> None:
    def checked(config: Config) -> None:
        cluster(config, "picker")["health_checks"] = [
            {
                "timeout": "1s",
                "interval": "0.1s",
                "no_traffic_interval": "0.1s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": "inference-extension"},
            }
        ]

    proxied = await start(change=checked)
    async with aiohttp.ClientSession() as http:
        stat = "cluster.picker.health_check.success"
        url = f"{proxied.envoy.admin}/stats?format=json&filter={stat}"
        successes = 0
        while successes == 0:
            async with http.get(url) as response:
                stats: list[dict[str, Any]] = (await response.json(content_type=None))["stats"]
            successes = sum(s.get("value", 0) for s in stats if s.get("name") == stat)

    assert (await post(proxied))[0] == 200


async def test_an_engine_that_cannot_be_reached_is_told_and_suspected(start: StartProxied) -> None:
    proxied = await start(dead=1)

    status, headers, _ = await post(proxied)

    assert status == 503
    assert headers["x-went-into-resp-headers"] == "true"
    assert proxied.stream.fleet.suspected[0] == "127.0.0.1:1"
    assert proxied.outcomes == {"upstream_error": 1}


def socket_address(address: str) -> Config:
    host, port = address.split(":")
    return {"address": host, "port_value": int(port)}


def override_host(config: Config) -> None:
    """The shipped configuration with ordered fallbacks, for the test's engines."""
    fallbacks = shipped("envoy-override-host.yaml")
    manager(config)["route_config"] = manager(fallbacks)["route_config"]
    engines = cluster(config, "engines")
    engines.clear()
    engines.update(cluster(fallbacks, "engines"))
    engines["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": socket_address(address)}}}
        for address in config.pop("test_addresses")
    ]


@pytest.mark.parametrize("size", [26, 33_000_000])
@pytest.mark.parametrize("first", ["dead", "refuses"])
async def test_the_next_address_is_tried_and_has_the_slot(
    start: StartProxied, first: str, size: int
) -> None:
    behave = [refuses, streams(1, asyncio.Semaphore(1))] if first == "refuses" else [digest]
    proxied = await start(
        *behave,
        dead=1 if first == "dead" else 0,
        most_targets=3,
        change=override_host,
    )

    status, _, _ = await post(proxied, prompt_of(size))

    assert status == 200
    assert proxied.booked == []
    assert proxied.stream.fleet.suspected  # the one that was passed over


async def test_a_subset_hint_is_kept(start: StartProxied) -> None:
    def hinted(config: Config) -> None:
        filters(config).insert(
            0,
            {
                "name": "envoy.filters.http.header_to_metadata",
                "typed_config": {
                    "@type": f"{FILTERS}.header_to_metadata.v3.Config",
                    "request_rules": [
                        {
                            "header": "x-only",
                            "on_header_present": {
                                "metadata_namespace": "envoy.lb.subset_hint",
                                "key": "x-gateway-destination-endpoint-subset",
                            },
                        }
                    ],
                },
            },
        )

    proxied = await start(digest, answers(3), change=hinted)

    _, _, only = await post(proxied, headers={"x-only": proxied.upstreams[1].address})
    status, _, none = await post(proxied, headers={"x-only": "10.9.9.9:1"})

    assert only == b"yyy"
    assert status == 503
    assert b"failed to find endpoint candidates" in none


async def test_a_mode_in_which_nothing_could_be_picked_is_said(start: StartProxied) -> None:
    def buffered(config: Config) -> None:
        picker_filter(config)["processing_mode"]["request_body_mode"] = "BUFFERED"

    proxied = await start(change=buffered)

    status, _, answer = await post(proxied)

    assert status == 500
    assert b"request_body_mode must be FULL_DUPLEX_STREAMED" in answer


async def test_answers_need_not_pass_by_us(start: StartProxied) -> None:
    def unseen(config: Config) -> None:
        mode = picker_filter(config)["processing_mode"]
        mode |= {"response_body_mode": "NONE", "response_trailer_mode": "SKIP"}

    proxied = await start(answers(100_000), change=unseen)

    status, _, answer = await post(proxied)

    assert (status, len(answer)) == (200, 100_000)
    await freed(proxied)
    assert proxied.outcomes == {"ok": 1}


async def freed(proxied: Proxied) -> None:
    """Until the picker holds no slot: Envoy tells it a moment after the client has its end."""
    async with asyncio.timeout(10):
        while proxied.booked or not proxied.outcomes:
            await asyncio.sleep(0)


async def test_the_access_log_has_the_client_that_envoy_tells(
    start: StartProxied, caplog: pytest.LogCaptureFixture
) -> None:
    def tells(config: Config) -> None:
        picker_filter(config)["request_attributes"] = ["source.address"]

    caplog.set_level(logging.INFO, "inferway.access")
    log = AccessLog("json")
    proxied = await start(change=tells, extensions=[log])

    await post(proxied, headers={"x-request-id": "mine"})

    log.flush()
    line = msgspec.json.decode(caplog.messages[-1])
    assert (line["client"], line["status"], line["outcome"]) == ("127.0.0.1", 200, "ok")
    assert (line["path"], line["request_id"]) == ("/v1/completions", "mine")
    assert line["total_ms"] >= 0


async def test_the_engine_gets_the_context_of_the_picker_s_span(start: StartProxied) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter))
    proxied = await start(extensions=[tracing], tracing=tracing)
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

    await post(proxied, headers={"traceparent": f"00-{trace}-{span}-01", "tracestate": "v=1"})
    await post(proxied, headers={"traceparent": "00-bad", "tracestate": "v=1"})

    attempts = [each for each in exporter.get_finished_spans() if each.name == "attempt"]
    first, second = (came.headers for came in proxied.upstreams[0].came)
    contexts = [each.context for each in attempts]
    assert first["traceparent"] == f"00-{trace}-{contexts[0].span_id:016x}-01"
    assert first["tracestate"] == "v=1"
    assert second["traceparent"].startswith(f"00-{contexts[1].trace_id:032x}-")
    assert "tracestate" not in second
