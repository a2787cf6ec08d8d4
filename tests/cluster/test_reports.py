"""What all workers' requests show is that of one gateway: records, files, decisions that are
published, live prompts that are compared with the engines'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
import zmq
from tests.cluster.serving import LONG, Serving, serving, worker_of
from tests.engines import client
from tests.engines.waiting import wait_until

from inferway.scheduling.expected_ttft.learning import TTFT_FEATURES, USUAL_TTFT
from inferway_console.records.files import FleetLine
from inferway_console.records.reader import Recorded, RecordReader

SECONDS = 120


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def recorded(directory: Path) -> Iterator[Serving]:
    settings = directory / "gateway.yaml"
    settings.write_text("publish: tcp://127.0.0.1:*\nprobe: {one_in: 1}\n")
    flags = ("--config", str(settings), "--record", str(directory / "files"))
    with serving(directory, *flags) as found:
        yield found


def asked_of_both(recorded: Serving, text: str) -> list[str]:
    """The ids of two requests, each of which another worker has answered."""
    first = recorded.chat(text)
    second = recorded.by_another(first, text)
    return [answer.headers["x-request-id"] for answer in (first, second)]


def test_an_admin_sees_the_requests_of_all_workers(recorded: Serving) -> None:
    wanted = set(asked_of_both(recorded, LONG + "one"))

    def seen() -> bool:
        told = client.get(f"{recorded.url}/admin/requests?limit=1000").json
        return wanted <= {each["id"] for each in told["requests"]}

    wait_until(seen, "both are in the list")
    for request_id in wanted:
        record = client.get(f"{recorded.url}/admin/requests/{request_id}").json
        assert record["outcome"] == "ok"
        assert record["prompt_tokens"] > 50
        assert len(record["candidates"]) == 2


def test_traffic_is_that_of_all_workers(recorded: Serving) -> None:
    def by_prompt() -> int:
        number: int = client.get(f"{recorded.url}/admin/traffic").json["by_prompt"]
        return number

    before = by_prompt()
    asked_of_both(recorded, LONG + "two")

    wait_until(lambda: by_prompt() >= before + 2, "both are counted")


def test_files_have_the_requests_of_all_workers_with_their_blocks(
    recorded: Serving, directory: Path
) -> None:
    wanted = set(asked_of_both(recorded, LONG + "three"))

    def written() -> bool:
        found = {each.record.id: each for each in read(directory) if isinstance(each, Recorded)}
        return wanted <= found.keys() and all(found[each].blocks for each in wanted)

    wait_until(written, "both are in the files")


@pytest.mark.slow  # what was learned is written once a minute
def test_files_have_what_the_workers_have_learned(recorded: Serving, directory: Path) -> None:
    usual, numbers = dict(zip(TTFT_FEATURES, USUAL_TTFT, strict=True)), count()

    def learned() -> bool:
        number = next(numbers)  # no engine has the prompt, and no two are of one length
        recorded.chat(f"Number {number}. {LONG * (1 + number % 5)}", stream=True)
        lines = [each for each in read(directory) if isinstance(each, FleetLine) and each.costs]
        own = [line.costs["ttft_own_token"] for line in lines]
        return any(each != pytest.approx(usual["ttft_own_token"], rel=0.01) for each in own)

    wait_until(learned, "costs are in the files")


def read(directory: Path) -> list[Recorded | FleetLine]:
    return list(RecordReader(directory / "files"))


@pytest.fixture
def published(recorded: Serving) -> Iterator[zmq.Socket[bytes]]:
    """A subscriber of all chats."""
    address = re.search(r"published on (\S+)", recorded.gateway.log_text())
    assert address is not None
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.RCVTIMEO, SECONDS * 1000)
        socket.setsockopt(zmq.LINGER, 0)
        socket.subscribe(b"kv.chat.")
        socket.connect(address[1])
        wait_until(lambda: recorded.chat("Hello?") and socket.poll(20), "it is subscribed")
        yield socket


def test_decisions_of_all_workers_are_published(
    recorded: Serving, published: zmq.Socket[bytes]
) -> None:
    first = recorded.chat(LONG)
    second = recorded.by_another(first, LONG)
    wanted = {answer.headers["x-request-id"] for answer in (first, second)}

    seen: set[str] = set()
    while not wanted <= seen:
        topic, _, body = published.recv_multipart()
        assert topic == b"kv.chat.smollm2"
        seen.add(msgspec.msgpack.decode(body)["id"])


def test_live_prompts_of_all_workers_are_compared(recorded: Serving) -> None:
    def compared() -> float:
        return recorded.metric("inferway_probes_total", 'occasion="live",result="agrees"')

    workers = set()

    def by_all() -> bool:
        before = compared()
        answer = recorded.chat(LONG + "Compare.")
        log = Path(recorded.gateway.log)
        wait_until(lambda: compared() > before, "it was compared", log.read_text)
        workers.add(worker_of(answer))
        return len(workers) == 2

    wait_until(by_all, "prompts of both workers were compared")
