"""What of a client's headers an engine must not see, one by one."""

from __future__ import annotations

import pytest
from tests.http.clients import connected, post
from tests.http.gateways import gateway
from tests.upstream.engines import answer, in_loop, running

from inferway.http.headers import ROUTING_HEADERS, ROUTING_PREFIXES
from inferway.upstream.headers import HOP_BY_HOP

# Field notes 3.5, by hand: a header that is missing in the gateway's own table is missed here.
NOTED = [
    b"x-gateway-destination-endpoint",
    b"x-gateway-destination-endpoint-subset",
    b"x-gateway-destination-endpoint-served",
    b"x-gateway-destination-endpoint-scores",
    b"x-gateway-inference-objective",
    b"x-gateway-inference-fairness-id",
    b"x-gateway-model-name-rewrite",
    b"x-llm-d-inference-objective",
    b"x-llm-d-inference-fairness-id",
    b"x-llm-d-model-name-rewrite",
    b"x-llm-d-slo-ttft-ms",
    b"x-llm-d-slo-tpot-ms",
    b"x-slo-ttft-ms",
    b"x-slo-tpot-ms",
    b"x-session-token",
    b"x-session-id",
    b"x-prefiller-host-port",
    b"x-encoder-hosts-ports",
    b"x-data-parallel-host-port",
    b"x-kv-cache-source-host-port",
    b"x-went-into-resp-headers",
    b"x-data-parallel-rank",
    b"x-vllm-priority",
]
# The connection's own; without those that this client cannot say: they frame its message.
HOPS = sorted(HOP_BY_HOP - {b"transfer-encoding", b"connection"})
OURS = [prefix + b"anything" for prefix in ROUTING_PREFIXES]


@pytest.mark.parametrize("name", sorted({*NOTED, *HOPS, *OURS, *ROUTING_HEADERS}))
@in_loop
async def test_an_engine_does_not_see(name: bytes) -> None:
    spelled = name.title()
    async with running(answer()) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.ask(post(b"{}", spelled + b": 1", b"X-Kept: 1", name + b": 2"))

    assert engine.seen[0].values(name) == []
    assert engine.seen[0].values(b"x-kept") == [b"1"]


@in_loop
async def test_an_engine_does_not_see_what_connection_names() -> None:
    async with running(answer()) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.ask(post(b"{}", b"Connection: x-mine, keep-alive", b"X-Mine: 1", b"X-Kept: 1"))

    assert engine.seen[0].values(b"x-mine") == []
    assert engine.seen[0].values(b"connection") == []
    assert engine.seen[0].values(b"x-kept") == [b"1"]


@pytest.mark.parametrize("name", [b"traceparent", b"tracestate", b"user-agent", b"x-request-id"])
@in_loop
async def test_an_engine_sees(name: bytes) -> None:
    async with running(answer()) as engine, gateway(engine.url) as gw, connected(gw.server) as c:
        await c.ask(post(b"{}", name + b": as-it-came"))

    assert engine.seen[0].values(name) == [b"as-it-came"]
