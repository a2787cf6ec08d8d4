"""With followers a gateway is to its clients what it is without, whatever becomes of a process."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
import zmq
from tests.engines import client
from tests.engines.program import Program
from tests.engines.waiting import wait_until
from tests.workers.processes import (
    is_there,
    kill,
    place,
    wait_for_cpu,
)
from tests.workers.serving import CHAT, LONG, MODEL, Serving, serving, simulated

from inferway_sim.engine import SimulatedEngine

FOLLOWERS = 2
FLAGS = ["--followers", str(FOLLOWERS)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("followers")
    flags = ("--policy", "kv-aware", "--scrape-seconds", "0.05", *FLAGS)
    with serving(directory, *flags) as found:
        yield found


def exact(gateway: Serving) -> float:
    """How many engines' caches are known as they are."""
    return gateway.metric("inferway_stream_state", 'state="exact"')


def is_known(gateway: Serving, *contents: str) -> bool:
    """Whether a worker finds the prompt in an engine's cache."""
    return int(gateway.insist(*contents).headers["x-inferway-matched-blocks"]) > 3


def streams(gateway: Serving) -> dict[str, object]:
    """What /admin/engines says of each engine's stream, by its state."""
    engines = client.get(f"{gateway.url}/admin/engines").json["engines"]
    return {engine["name"]: engine["endpoints"][0]["stream"] for engine in engines}


def test_each_follower_follows_an_engine_and_all_workers_know_what_it_hears(two: Serving) -> None:
    assert len(two.followers()) == FOLLOWERS
    wait_until(lambda: exact(two) == 2, "both caches are known")
    first = two.chat(LONG + "one")

    def found() -> bool:
        answer = two.by_another(first, LONG + "one")
        return int(answer.headers["x-inferway-matched-blocks"]) > 3

    wait_until(found, "the other worker knows the engine's blocks")


def test_what_streams_have_brought_is_shown_at_the_hub(two: Serving) -> None:
    before = two.metric("inferway_blocks_stored_total")
    two.chat(LONG + "shown")

    wait_until(lambda: two.metric("inferway_blocks_stored_total") > before, "it is counted")
    told = streams(two)
    assert len(told) == 2
    for stream in told.values():
        assert stream is not None
        assert stream["from_start"] is True  # type: ignore[index]
        assert stream["dialect"] is not None  # type: ignore[index]


def test_a_follower_that_is_killed_is_replaced_and_its_engines_are_known_again(
    two: Serving,
) -> None:
    two.chat(LONG + "two")
    wait_until(lambda: is_known(two, LONG + "two"), "it is known")
    for killed in two.followers():
        kill(killed)
        wait_until(lambda gone=killed: gone not in two.followers(), "it has ended")  # type: ignore[misc]
        wait_until(lambda: two.metric("inferway_stream_state", 'state="stale"') == 1, "it is stale")
        assert two.insist("Who is left?").status == 200
        wait_until(lambda: exact(two) == 2, "both caches are known", two.gateway.log_text)

    assert len(two.followers()) == FOLLOWERS
    assert is_known(two, LONG + "two")
    assert "follower 1 has ended, by signal 9; another one is started" in two.gateway.log_text()


def test_a_follower_that_hangs_is_replaced(two: Serving) -> None:
    hung = two.followers()[0]

    os.kill(hung, signal.SIGSTOP)

    wait_until(lambda: not is_there(hung), "it is killed", two.gateway.log_text)
    wait_until(lambda: exact(two) == 2, "both caches are known", two.gateway.log_text)


def test_engines_come_and_go(tmp_path: Path) -> None:
    settings = tmp_path / "gateway.yaml"
    settings.write_text("policy: kv-aware\n")
    with simulated() as late, simulated() as other:

        def list_engines(*engines: SimulatedEngine) -> None:
            urls = "".join(f"\n- url: {engine.url}" for engine in engines)
            settings.write_text(f"policy: kv-aware\nengines:{urls}\n")

        list_engines(other)
        words = ["serve", "--config", str(settings), "--workers", "2", *FLAGS]
        with Program(words, tmp_path / "gateway.log") as gateway:
            found = Serving(gateway, [])
            wait_until(lambda: exact(found) == 1, "it is known", gateway.log_text)
            found.chat(LONG)
            wait_until(lambda: is_known(found, LONG), "what it holds is known")

            list_engines(other, late)
            os.kill(gateway.pid, signal.SIGHUP)
            wait_until(lambda: exact(found) == 2, "the new one, too", gateway.log_text)

            list_engines(late)
            os.kill(gateway.pid, signal.SIGHUP)
            wait_until(lambda: exact(found) == 1, "one has left", gateway.log_text)
            found.chat(LONG)
            wait_until(lambda: is_known(found, LONG), "what the new one holds is known")
            assert gateway.stop() == 0


def test_blocks_without_a_known_parent_are_adopted_by_prompts_of_workers(tmp_path: Path) -> None:
    # The follower gets to know the last story, whether it asks before the probe or behind it, and
    # never the first. How the engine hashes, a prompt shows that begins as no other one does.
    stories = [LONG * number for number in range(1, 12)]
    last_batches = ["--kv-events-replay-queue-size", "9"]
    with simulated(*last_batches) as engine:
        for story in stories:
            message = {"role": "user", "content": story}
            body = {"model": MODEL, "messages": [message], "max_tokens": 1}
            assert client.post(f"{engine.url}{CHAT}", body).status == 200
        words = ["serve", engine.url, "--workers", "2", "--policy", "kv-aware", *FLAGS]
        with Program(words, tmp_path / "gateway.log") as gateway:
            found = Serving(gateway, [engine])
            wait_until(lambda: found.metric("inferway_orphans") > 0, "one is known")

            numbers = count()

            def adopted() -> bool:
                new = {"model": MODEL, "prompt": f"{next(numbers)} {LONG}", "max_tokens": 1}
                client.post(f"{found.url}/v1/completions", new)
                found.chat(stories[-1], max_tokens=1)
                return found.metric("inferway_blocks_adopted_total") > 0

            wait_until(adopted, "prompts give them their keys", gateway.log_text)


def test_events_are_published_whoever_follows_them(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--publish", "tcp://127.0.0.1:*", *FLAGS, engines=1) as found,
        zmq.Context() as context,
        context.socket(zmq.SUB) as socket,
    ):
        said = re.search(r"are published on (tcp://\S+)", found.gateway.log_text())
        assert said is not None
        socket.setsockopt(zmq.LINGER, 0)
        socket.subscribe(b"kv.events.")
        socket.connect(said[1])

        def published() -> bool:
            found.chat(f"{LONG} {found.metric('inferway_published_total')}")
            return socket.poll(100) != 0

        wait_until(published, "an event comes", found.gateway.log_text)
        topic, _, body = socket.recv_multipart()
        assert topic == f"kv.events.{MODEL}".encode()
        engine = msgspec.msgpack.decode(body)["engine"]
        assert engine == found.engines[0].url.removeprefix("http://")


def test_nobody_follows_before_somebody_asks_what_engines_hold(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-scoring", *FLAGS, engines=1) as found:
        assert found.chat("Hello").status == 200
        assert not found.followers()

        body = {"model": MODEL, "prompt": LONG}
        assert client.post(f"{found.url}/score_completions", body).status == 200
        wait_until(lambda: exact(found) == 1, "it is known", found.gateway.log_text)
        assert len(found.followers()) == FOLLOWERS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", [0.0, 0.6])
def test_a_follower_killed_in_the_gateways_first_start_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: float
) -> None:
    with place(tmp_path, monkeypatch, *FLAGS) as at:
        begun = at.begin()
        killed = wait_until(begun.followers, "one begins", begun.gateway.log_text)[0]
        wait_for_cpu(killed, moment)
        kill(killed)

        begun.gateway.listens()
        begun.all_answer()
        wait_until(lambda: exact(begun) == 1, "its cache is known", begun.gateway.log_text)
        assert begun.gateway.stop() == 0
        assert not at.files


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", [0.0, 0.5, None], ids=["begun", "starting", "serving"])
def test_a_hub_killed_leaves_no_follower_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: float | None
) -> None:
    with place(tmp_path, monkeypatch, *FLAGS) as at:
        begun = at.begin()
        follower = wait_until(begun.followers, "one begins", begun.gateway.log_text)[0]
        if moment is None:
            begun.gateway.listens()
            wait_until(lambda: exact(begun) == 1, "its cache is known", begun.gateway.log_text)
        else:
            wait_for_cpu(follower, moment)

        at.kill_hub(begun)

        again = at.start()
        again.all_answer()
        wait_until(lambda: exact(again) == 1, "its cache is known", again.gateway.log_text)
        assert again.gateway.stop() == 0
        wait_until(lambda: not at.processes(), "no process is left")
