"""Gateways that are processes, before engines that are, tell each other what they have sent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
import zmq
from tests.cluster.redis_server import free_port, running_server
from tests.cluster.serving import simulated
from tests.cluster.serving_gateways import Gateways, gateways
from tests.engines import client
from tests.engines.program import Program
from tests.engines.waiting import wait_until

from inferway.cluster.bus.peer_messages import VERSION
from inferway.cluster.bus.sound import SENDER_BYTES

pytestmark = pytest.mark.timeout(400)  # of processes that all start at once


@contextmanager
def peer_to_peer(directory: Path, number: int, *flags: str, **how: Any) -> Iterator[Gateways]:
    with gateways(directory, *flags, number=number, **how) as found:
        yield found


@contextmanager
def over_redis(directory: Path, number: int, *flags: str, **how: Any) -> Iterator[Gateways]:
    with (
        running_server() as server,
        gateways(directory, *flags, number=number, redis=server.url, **how) as found,
    ):
        yield found


Start = Callable[..., AbstractContextManager[Gateways]]
WAYS = [
    pytest.param(peer_to_peer, id="peer to peer"),
    pytest.param(over_redis, id="redis", marks=pytest.mark.tools),
]


@pytest.mark.slow
@pytest.mark.parametrize("start", WAYS)
@pytest.mark.parametrize("number", [2, 4])
def test_none_sends_where_another_has_just_sent_and_one_that_is_killed_is_forgotten(
    start: Start, number: int, tmp_path: Path
) -> None:
    with start(tmp_path, number, "--policy", "least-load") as fleet:
        fleet.all_hear()

        chosen, was_silent = _eight_sent(fleet, number)
        while was_silent:
            fleet.end_all()
            fleet.all_hear()
            chosen, was_silent = _eight_sent(fleet, number)
        assert len(set(chosen)) == 8, (chosen, [each.log_text() for each in fleet.programs])

        os.kill(fleet.programs[-1].pid, signal.SIGKILL)
        left = range(number - 1)
        fleet.all_count(8 - 8 // number, left)
        assert [fleet.num_heard(gateway) for gateway in left] == [number - 2] * len(left)

        fleet.start(number - 1)
        fleet.all_hear()
        fleet.all_count(8 - 8 // number)


def _eight_sent(fleet: Gateways, number: int) -> tuple[list[str], bool]:
    """The engines of eight requests, one after the other, and whether a gateway was held up so long
    meanwhile that the others took it for gone."""
    before = fleet.num_silences()
    chosen = []
    for request in range(8):
        fleet.all_count(request)
        chosen.append(fleet.stream(request % number, f"question {request}"))
    fleet.all_count(8)
    return chosen, fleet.num_silences() > before


@pytest.mark.slow
@pytest.mark.parametrize("start", WAYS)
def test_a_gateway_that_starts_knows_what_the_others_have_learned(
    start: Start, tmp_path: Path
) -> None:
    slow = ("--prefill-overhead", "150ms")  # what is expected at the start is 20 ms
    with start(tmp_path, 2, engines=3, latency=slow) as fleet:
        fleet.all_hear()
        fleet.programs[1].stop()
        for request in range(60):
            fleet.stream(0, f"question {request}" * 20, tokens=4)
        fleet.end_all()
        fleet.start(1)

        def knows() -> bool:
            """Single costs differ a little: not all of them are computed as often."""
            name = "inferway_expected_cost_seconds"
            told, found = [fleet[place].metric(name, 'of="ttft_fixed"') for place in (0, 1)]
            return told > 3 * 0.05 and 0.7 < found / told < 1.4

        wait_until(knows, "the new one expects what the old one does")
        assert fleet[1].metric("inferway_upstream_sent_total") == 0


@pytest.mark.slow
def test_what_waits_for_its_first_token_is_known_to_all(tmp_path: Path) -> None:
    slow = ("--prefill-overhead", "60s")
    with gateways(tmp_path, number=2, engines=2, latency=slow) as fleet:
        fleet.all_hear()

        def ask() -> None:
            with suppress(OSError, HTTPException):  # its gateway is stopped before the answer
                fleet[0].chat("Are you there?", stream=True)

        asking = Thread(target=ask)
        asking.start()

        wait_until(
            lambda: (
                [each["waiting"] for each in fleet.peers(1)["peers"]] == [0, 1]
                or [each["waiting"] for each in fleet.peers(1)["peers"]] == [1]
            ),
            "the other knows of it",
            lambda: fleet.peers(1),
        )
        os.kill(fleet.programs[0].pid, signal.SIGKILL)
        asking.join()


@pytest.mark.slow
def test_workers_of_several_hubs_are_one_gateway_each(tmp_path: Path) -> None:
    with gateways(tmp_path, "--policy", "least-load", "--workers", "2", engines=4) as fleet:
        fleet.all_hear()

        chosen = []
        for request in range(4):
            fleet.all_count(request)
            chosen.append(fleet.stream(request % 2, f"question {request}"))
        fleet.all_count(4)

        assert len(set(chosen)) == 4, chosen
        os.kill(fleet.programs[1].pid, signal.SIGKILL)
        fleet.all_count(2, [0])


# a wrong peer


class Liar:
    """A peer that tells what it likes."""

    def __init__(self, port: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.bind(f"tcp://127.0.0.1:{port}")
        self._number = 0

    def say(self, *parts: object) -> None:
        self._number += 1
        body = msgspec.msgpack.encode([VERSION, self._number, "liar", True, *parts])
        self.say_bytes((666).to_bytes(SENDER_BYTES, "big") + body)

    def say_bytes(self, payload: bytes) -> None:
        self._socket.send(payload)

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.mark.slow
def test_a_wrong_peer_is_refused_and_what_it_claims_goes_with_it(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    liar = Liar(ports[2])
    with simulated() as engine:
        name = engine.url.removeprefix("http://")
        words = ["serve", engine.url, *(f"--peers=127.0.0.1:{port}" for port in ports)]
        with (
            Program([*words, f"--peers-port={ports[0]}"], tmp_path / "one.log") as one,
            Program([*words, f"--peers-port={ports[1]}"], tmp_path / "other.log") as other,
        ):

            def state(address: str) -> dict[str, Any]:
                peers = client.get(f"{one.url}/admin/peers").json["peers"]
                found = [each for each in peers if each["address"] == f"127.0.0.1:{address}"]
                return found[0] if found else {}

            def in_flight() -> int:
                [engine] = client.get(f"{one.url}/admin/engines").json["engines"]
                return int(engine["load"]["in_flight"])

            def refused() -> bool:
                liar.say_bytes(b"\x00" * 4)
                liar.say_bytes(os.urandom(1000))
                liar.say([[0, ["Waits", name, 1, float("nan"), 1.0, 0.0, 1.0, 1.0, 1.0]]])
                liar.say([], [["no such engine", 5.0, 5.0]])
                reasons = state(str(ports[2])).get("refused", {})
                return {"size", "unreadable", "false"} <= set(reasons)

            wait_until(refused, "what cannot be is refused", one.log_text)
            wait_until(lambda: state(str(ports[1])).get("state") == "heard", "the other is heard")
            assert state(str(ports[1]))["refused"] == {}

            def believed() -> bool:
                liar.say([], [[name, 1000.0, 5.0]])
                return in_flight() == 1000

            wait_until(believed, "its claims count as long as it claims them")
            liar.say_bytes(b"x" * 1_000_000)  # nobody reads so much: the connection ends
            wait_until(believed, "it is heard again over another connection")
            liar.close()

            def forgotten() -> bool:
                return in_flight() == 0

            wait_until(forgotten, "its claims are gone with it")
            body = {"model": "smollm2", "prompt": "Hello", "max_tokens": 1}
            for gateway in (one, other):
                assert client.post(f"{gateway.url}/v1/completions", body).status == 200
            assert one.log_text().count("is refused: ") < 10  # once a minute for each reason
