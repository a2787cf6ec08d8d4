"""What only the hub does: publish, compare live prompts with the engines'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from tests.cluster.serving import LONG, Serving, serving, worker_of
from tests.engines.waiting import wait_until

SECONDS = 120


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("reports")
    settings = directory / "gateway.yaml"
    settings.write_text("publish: tcp://127.0.0.1:*\nprobe: {one_in: 1}\n")
    with serving(directory, "--config", str(settings)) as found:
        yield found


@pytest.fixture
def published(told: Serving) -> Iterator[zmq.Socket[bytes]]:
    """A subscriber of all chats."""
    address = re.search(r"published on (\S+)", told.gateway.log_text())
    assert address is not None
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.RCVTIMEO, SECONDS * 1000)
        socket.setsockopt(zmq.LINGER, 0)
        socket.subscribe(b"kv.chat.")
        socket.connect(address[1])
        wait_until(lambda: told.chat("Hello?") and socket.poll(20), "it is subscribed")
        yield socket


def test_decisions_of_all_workers_are_published(
    told: Serving, published: zmq.Socket[bytes]
) -> None:
    first = told.chat(LONG)
    second = told.by_another(first, LONG)
    wanted = {answer.headers["x-request-id"] for answer in (first, second)}

    seen: set[str] = set()
    while not wanted <= seen:
        topic, _, body = published.recv_multipart()
        assert topic == b"kv.chat.smollm2"
        seen.add(msgspec.msgpack.decode(body)["id"])


def test_live_prompts_of_all_workers_are_compared(told: Serving) -> None:
    def compared() -> float:
        return told.metric("inferway_probes_total", 'occasion="live",result="agrees"')

    workers = set()

    def by_all() -> bool:
        before = compared()
        answer = told.chat(LONG + "Compare.")
        wait_until(lambda: compared() > before, "it was compared", Path(told.gateway.log).read_text)
        workers.add(worker_of(answer))
        return len(workers) == 2

    wait_until(by_all, "prompts of both workers were compared")
