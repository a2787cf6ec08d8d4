"""Whatever process is killed, and whenever: requests of other workers end well, no process is left
behind, and the port is served again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.cluster.processes import (
    Place,
    cpu_seconds,
    first_worker,
    is_there,
    is_whole,
    kill,
    place,
    stopped,
    streams_of_both,
    wait_for_cpu,
)
from tests.cluster.serving import LONG, Serving
from tests.engines import client
from tests.engines.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SLOW = ["--inter-token-latency", "10ms"]


# a worker is killed


@pytest.mark.parametrize("moment", [0.0, 1.0])
def test_a_worker_killed_in_the_gateways_first_start_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: float
) -> None:
    with place(tmp_path, monkeypatch) as at:
        begun = at.begin()
        worker = first_worker(begun)
        wait_for_cpu(worker, moment)
        kill(worker)

        begun.gateway.listens()
        begun.all_answer(besides=[worker])
        assert begun.gateway.stop() == 0
        assert not at.files


def test_a_worker_killed_at_any_moment_of_its_start_costs_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(tmp_path, monkeypatch) as at:
        started = at.start()
        started.all_answer()
        known = set(started.workers())
        killed = min(known)
        for moment in (0.0, 0.3, 0.6, 0.9):  # of CPU time: the interpreter, imports, the snapshot
            kill(killed)
            wait_until(lambda gone=killed: not is_there(gone), "it has ended")  # type: ignore[misc]
            assert started.chat("Who is left?").status == 200
            killed = wait_until(lambda: set(started.workers()) - known, "another one").pop()
            known.add(killed)
            wait_for_cpu(killed, moment)

        started.all_answer()
        assert started.gateway.stop() == 0


def test_a_worker_killed_while_it_drains_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(tmp_path, monkeypatch, engine_flags=SLOW) as at:
        started = at.start()
        streams = streams_of_both(started, tokens=300)
        os.kill(started.gateway.pid, signal.SIGTERM)
        told = "running answers have"
        wait_until(lambda: told in started.gateway.log_text(), "it is shutting down")
        kill(started.workers()[0])

        assert sorted(map(is_whole, streams)) == [False, True]
        assert started.gateway.stop() == 0
        assert not at.processes()


# the hub is killed


def served_again(at: Place, killed: Serving) -> None:
    """Kill the hub: its processes end, and the next one serves the port."""
    at.kill_hub(killed)
    again = at.start()
    again.all_answer()
    assert client.get(f"{again.url}/ready").status == 200
    assert again.gateway.stop() == 0


@pytest.mark.parametrize(
    ("whose", "moment"), [("hub", 0.4), ("hub", 1.0), ("worker", 0.0), ("worker", 1.0)]
)
def test_a_hub_killed_before_its_workers_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str, moment: float
) -> None:
    """At a moment of its own life, or of a worker's."""
    with place(tmp_path, monkeypatch) as at:
        begun = at.begin()
        wait_for_cpu(begun.gateway.pid if whose == "hub" else first_worker(begun), moment)

        served_again(at, begun)


def test_a_worker_that_hears_all_at_once_what_a_killed_hub_had_told_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(tmp_path, monkeypatch) as at:
        begun = at.begin()
        worker = first_worker(begun)
        with stopped(worker):
            wait_until(
                lambda: len(begun.workers()) == 2, "the other one, too", begun.gateway.log_text
            )
            wait_for_cpu(begun.workers()[1], 1.0)  # the first one has been told as much
            kill(begun.gateway.pid)

        served_again(at, begun)


def test_a_hub_killed_while_it_loads_what_it_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    flags = ("--state-dir", str(state), "--policy", "kv-aware")
    # a replay brings the last batch alone
    last = ("--kv-events-replay-queue-size", "1")
    with place(tmp_path, monkeypatch, *flags, engine_flags=last) as at:
        started = at.start()
        started.all_answer()
        started.chat(LONG)
        wait_until(
            lambda: int(started.chat(LONG).headers["x-inferway-matched-blocks"]) > 3, "it is known"
        )
        assert started.gateway.stop() == 0
        (state / "lock").unlink(missing_ok=True)
        begun = at.begin()
        wait_until((state / "lock").exists, "it opens its state", begun.gateway.log_text)
        at.kill_hub(begun)

        again = at.start()
        wait_until(
            lambda: int(again.chat(LONG).headers["x-inferway-matched-blocks"]) > 3, "it is known"
        )
        assert again.metric("inferway_snapshot_loaded_blocks") > 0
        assert again.gateway.stop() == 0


def test_a_hub_killed_while_it_drains_cuts_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(tmp_path, monkeypatch, engine_flags=SLOW) as at:
        started = at.start()
        streams = streams_of_both(started, tokens=1500)  # longer than workers go on by themselves
        os.kill(started.gateway.pid, signal.SIGTERM)
        told = "running answers have"
        wait_until(lambda: told in started.gateway.log_text(), "it is shutting down")
        kill(started.gateway.pid)

        assert [is_whole(each) for each in streams] == [True, True]
        served_again(at, started)
        assert not at.files


def test_a_hub_killed_while_workers_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path, monkeypatch, engine_flags=SLOW) as at:
        started = at.start()
        streams = streams_of_both(started, tokens=1500)
        kill(started.gateway.pid)
        again = at.start()  # beside the workers of the first one

        assert again.chat("Who are you?").status == 200
        assert [is_whole(each) for each in streams] == [True, True]
        wait_until(lambda: len(at.processes()) == 3, "the old ones end")
        assert again.gateway.stop() == 0
        assert not at.files


@pytest.mark.parametrize("moment", [0.0, 0.6])
def test_a_gateway_that_is_stopped_while_workers_start_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: float
) -> None:
    with place(tmp_path, monkeypatch) as at:
        begun = at.begin()
        wait_for_cpu(first_worker(begun), moment)

        assert begun.gateway.stop() == 0
        wait_until(lambda: not at.processes(), "no process is left")
        assert not at.files


# while settings are reloaded


def limited(at: Serving) -> bool:
    """Whether a request of 1,000 bytes is too long for a worker."""
    return at.insist("a" * 1000).status == 413


def both_limited(at: Serving) -> None:
    """Wait until both workers have the new settings."""
    wait_until(lambda: len(at.workers()) == 2, "there are two workers")
    at.all_answer()
    wait_until(lambda: all(limited(at) for _ in range(20)), "both have them")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "gateway.yaml"
    written.write_text("limits: {body_bytes: 1000000}\n")
    return written


def test_a_worker_that_begins_while_settings_are_reloaded_has_the_new_ones(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(tmp_path, monkeypatch, "--config", str(file)) as at:
        started = at.start()
        started.all_answer()
        slow, killed = started.workers()
        with stopped(slow):  # the hub waits for what it says of the new settings
            with stopped(killed):
                file.write_text("limits: {body_bytes: 600}\n")
                os.kill(started.gateway.pid, signal.SIGHUP)
                kill(killed)
            new = wait_until(lambda: set(started.workers()) - {slow, killed}, "another one")
            told = "the settings were reloaded:"
            wait_until(lambda: told in started.gateway.log_text(), "the hub has them")

        both_limited(started)
        assert new <= set(started.workers())
        assert started.gateway.stop() == 0


@pytest.mark.parametrize("moment", [0.0, 0.02])
def test_a_hub_killed_while_settings_are_reloaded(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, moment: float
) -> None:
    with place(tmp_path, monkeypatch, "--config", str(file)) as at:
        started = at.start()
        started.all_answer()
        hub = started.gateway.pid
        with stopped(started.workers()[0]):  # the other one is asked, and told
            file.write_text("limits: {body_bytes: 600}\n")
            had = cpu_seconds(hub)
            os.kill(hub, signal.SIGHUP)
            wait_for_cpu(hub, had + moment)
            kill(hub)
        at.kill_hub(started)

        again = at.start()
        both_limited(again)
        assert again.gateway.stop() == 0
