"""A gateway of several processes is one gateway to its clients, whatever becomes of a process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.cluster.processes import is_there
from tests.cluster.serving import LONG, Serving, serving
from tests.engines import client
from tests.engines.waiting import wait_until


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("workers")
    with serving(directory, "--policy", "kv-aware", "--scrape-seconds", "0.05") as found:
        yield found


def test_any_worker_has_the_numbers_of_all(two: Serving) -> None:
    def answers() -> float:
        return two.metric("inferway_http_answers_total", 'status="200"')

    before = answers()
    first = two.chat("How many are you?")
    two.by_another(first, "How many are you?")

    assert answers() >= before + 2
    assert two.metric("inferway_engine_up") == 2


def test_an_engine_that_is_drained_gets_nothing_from_any_worker(two: Serving) -> None:
    name = two.engines[0].url.removeprefix("http://")
    client.post(f"{two.url}/admin/engines/{name}/drain?seconds=0", b"")
    try:
        wait_until(lambda: two.metric("inferway_engine_drained", name) == 1, "it is drained")

        def none_goes_there() -> bool:
            first = two.chat("Where to?")
            both = [first, two.by_another(first, "Where to?")]
            return all(answer.headers["x-inferway-engine"] != name for answer in both)

        wait_until(none_goes_there, "all workers know that it is drained")
    finally:
        client.post(f"{two.url}/admin/engines/{name}/resume", b"")


def test_the_engine_whose_cache_is_worth_least_is_drained_by_what_all_workers_have_seen(
    two: Serving,
) -> None:
    def found() -> bool:
        first = two.chat(LONG + "worth")
        two.by_another(first, LONG + "worth")
        return two.metric("inferway_engine_cache_worth_tokens") > 100

    wait_until(found, "workers have found something in a cache")
    engines = client.get(f"{two.url}/admin/engines").json["engines"]
    worth = {engine["name"]: engine["cache_worth_tokens"] for engine in engines}

    drained = client.post(f"{two.url}/admin/drain?seconds=0", b"").json["name"]
    try:
        assert worth[drained] == min(worth.values())
        assert client.post(f"{two.url}/admin/drain?seconds=0", b"").status == 409
    finally:
        client.post(f"{two.url}/admin/engines/{drained}/resume", b"")


def test_a_worker_that_is_killed_is_replaced_and_the_others_go_on(two: Serving) -> None:
    two.all_answer()
    killed = two.workers()[0]

    os.kill(killed, signal.SIGKILL)

    assert two.insist("And now?").status == 200
    two.all_answer(besides=[killed])
    assert "has ended, by signal 9; another one is started" in two.gateway.log_text()
    first = two.chat(LONG + "two")
    wait_until(
        lambda: int(two.by_another(first, LONG + "two").headers["x-inferway-matched-blocks"]) > 3,
        "the new worker knows what the engines hold",
    )


def test_a_worker_that_hangs_is_replaced(two: Serving) -> None:
    two.all_answer()
    hung = two.workers()[0]

    os.kill(hung, signal.SIGSTOP)

    wait_until(lambda: hung not in two.workers(), "it is killed", two.gateway.log_text)
    two.all_answer(besides=[hung])


def test_a_reload_is_taken_by_all_or_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("reload")
    settings = directory / "gateway.yaml"
    settings.write_text("limits: {body_bytes: 1000000}\n")
    with serving(directory, "--config", str(settings)) as found:
        settings.write_text("limits: {body_bytes: 600}\n")
        os.kill(found.gateway.pid, signal.SIGHUP)
        wait_until(lambda: found.chat("a" * 1000).status == 413, "the limit holds")
        first = found.chat("a" * 1000)
        assert found.by_another(first, "a" * 1000).status == 413
        assert found.gateway.log_text().count("the settings were reloaded:") == 1

        settings.write_text("limits: {body_bytes: -1}\n")
        os.kill(found.gateway.pid, signal.SIGHUP)
        refused = "the settings were not reloaded, and all stays as it was"
        wait_until(lambda: refused in found.gateway.log_text(), "it is refused")
        assert found.chat("a" * 1000).status == 413
        assert found.gateway.stop() == 0


def test_workers_go_on_for_a_while_without_their_hub(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with serving(tmp_path_factory.mktemp("orphans")) as found:
        found.all_answer()
        workers = found.workers()
        os.kill(found.gateway.pid, signal.SIGKILL)
        wait_until(
            lambda: found.gateway.log_text().count("the hub has ended") == len(workers),
            "the workers know",
        )

        assert found.chat(LONG).status == 200
        refused = client.get(f"{found.url}/ready")
        assert refused.status == 503
        assert refused.json["error"]["message"].startswith("this path is answered by the gateway's")
        assert "hub.sock" not in refused.json["error"]["message"]
        wait_until(lambda: not any(map(is_there, workers)), "the workers end")


def test_an_open_page_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """A worker passes on what the hub shows; `Program.stop` waits less than answers may take."""
    (tmp_path / "gateway.yaml").write_text("timeouts: {drain: 600}\n")
    with (
        serving(tmp_path, "--config", str(tmp_path / "gateway.yaml"), engines=1) as found,
        urlopen(f"{found.url}/admin/live") as page,
    ):
        assert page.readline().startswith(b"event:")

        assert found.gateway.stop() == 0
        assert page.read() is not None  # to its end
