"""`inferway bench epp`: what is computed from its figures, and Envoy's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench.tests.test_report import MACHINE

from inferway_bench.engine_answers import chat_stream
from inferway_bench.epp.engine import PacedConnection
from inferway_bench.epp.envoy import configuration
from inferway_bench.epp.report import EPP
from inferway_bench.epp.results import Arm, Case, EppRun
from inferway_bench.upstream import Engine

DOCS = Path(__file__).parents[2] / "docs"


def case(name: str, echo: float, ours: float, messages: float = 6.0) -> Case:
    def arm(us: float) -> Arm:
        return Arm([us - 10, us, us + 10], [100.0] * 3, [messages] * 3)

    timed = msgspec.structs.replace(arm(ours), route_us=[190.0, 200.0, 210.0])
    return Case(name, 700, arm(echo), arm(ours), timed)


def run(ours: float = 750, streamed: float = 4750) -> EppRun:
    return EppRun(
        machine=MACHINE,
        command="inferway bench epp",
        envoy="Envoy 1.40.0",
        seconds=5,
        connections=8,
        events=50,
        cases=[case("a chat", 500, ours)],
        stream=case("streamed", 4500, streamed, 56.0),
    )


def test_a_request_is_compared_with_echo_and_the_route_together() -> None:
    assert run().cases[0].times == pytest.approx(750 / (500 + 200))


def test_a_chunk_is_what_a_stream_costs_more_by_message() -> None:
    found = run()

    assert found.chunk_us("echo") == pytest.approx(4000 / 50)
    assert found.chunk_times == pytest.approx(1.0)


def missed(found: EppRun) -> list[str]:
    return [goal.what for goal in found.goals() if not goal.is_met]


def test_what_is_not_as_asked_is_named() -> None:
    assert missed(run()) == []
    assert missed(run(ours=806)) == ["a chat, CPU a pick"]
    assert missed(run(streamed=6000)) == ["CPU a streamed chunk"]


def test_a_run_is_told() -> None:
    row = "| a chat | 700 | 500 (490 to 510) | 750 (740 to 760) | 200 | 1.07 |"

    assert row in EPP.markdown(run())


def test_an_echo_over_our_own_grpc_is_told_beside_the_other() -> None:
    kept = run()
    bare = msgspec.structs.replace(kept.cases[0].echo, cpu_us=[190.0, 200.0, 210.0])
    case = msgspec.structs.replace(kept.cases[0], bare=bare)
    longer = msgspec.structs.replace(bare, messages=[56.0] * 3)
    stream = msgspec.structs.replace(kept.stream, bare=longer)
    found = EPP.markdown(msgspec.structs.replace(kept, cases=[case], stream=stream))

    cpu = "500 (490 to 510) | 200 (190 to 210) | 750 (740 to 760)"
    assert f"| a chat | 700 | {cpu} | 200 | 1.07 | 1.88 |" in found
    assert "echo over our gRPC" in found


def test_each_door_has_its_picker() -> None:
    config = msgspec.json.decode(configuration({"echo": (1, 2), "ours": (3, 4)}, 5))
    resources = config["static_resources"]

    ports = [
        listener["address"]["socket_address"]["port_value"] for listener in resources["listeners"]
    ]
    assert ports == [1, 3]
    assert [cluster["name"] for cluster in resources["clusters"]] == ["engines", "echo", "ours"]


class _Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.text = b""

    def write(self, data: bytes) -> None:
        self.text += data

    def is_closing(self) -> bool:
        return False


class _NoPublisher:
    endpoint = "tcp://127.0.0.1:1"

    def publish(self, token_ids: list[int]) -> int:
        return len(token_ids)


async def test_a_paced_stream_is_whole_chunks_and_an_end() -> None:
    engine = Engine("m", "m", 16, _NoPublisher())
    transport: Any = _Written()
    connection = PacedConnection(engine, 0, chat_stream("m"))
    connection.connection_made(transport)
    body = b'{"stream":true}'

    connection.data_received(
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )

    head, _, rest = transport.text.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert rest == b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
