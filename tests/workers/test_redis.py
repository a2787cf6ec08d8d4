"""A gateway of several processes with its index in a real Redis: the hub writes it, workers read
it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.engines.program import Program
from tests.engines.waiting import wait_until
from tests.kv.index.redis_server import RedisServer, running_server
from tests.workers.serving import LONG, Serving, serving, worker_of

pytestmark = [pytest.mark.tools, pytest.mark.timeout(600)]

FLAGS = ("--policy", "kv-aware", "--scrape-seconds", "0.05")
BLOCKS = "x-inferway-matched-blocks"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running_server() as running:
        yield running


def both_find(found: Serving, text: str) -> None:
    """Wait until both workers find a prompt's blocks in the index."""
    seen: set[str] = set()

    def so() -> bool:
        answer = found.insist(text)
        if int(answer.headers[BLOCKS]) > 3:
            seen.add(worker_of(answer))
        return len(seen) == 2

    wait_until(so, "both workers find it", found.gateway.log_text)


def test_workers_find_what_the_hub_has_written(tmp_path: Path, server: RedisServer) -> None:
    with serving(tmp_path, "--index", server.url, *FLAGS) as found:
        found.chat(LONG + "one")
        both_find(found, LONG + "one")
        leases = server.ask("KEYS", "*:lease")
        assert len(leases) == len(found.engines)
        assert found.metric("inferway_index_leases") == len(found.engines)

        killed = found.workers()[0]
        os.kill(killed, signal.SIGKILL)
        found.all_answer(besides=[killed])
        both_find(found, LONG + "one")
        assert found.gateway.stop() == 0


def test_another_gateway_finds_it_as_well(tmp_path: Path, server: RedisServer) -> None:
    with serving(tmp_path, "--index", server.url, *FLAGS) as found, ExitStack() as stack:
        found.chat(LONG + "two")
        both_find(found, LONG + "two")
        urls = [engine.url for engine in found.engines]
        words = ["serve", *urls, "--workers", "2", "--index", server.url, *FLAGS]
        other = stack.enter_context(Program(words, tmp_path / "other.log"))

        both_find(Serving(other, found.engines), LONG + "two")


def test_requests_go_by_load_while_the_server_is_away(tmp_path: Path, server: RedisServer) -> None:
    with serving(tmp_path, "--index", server.url, *FLAGS) as found:
        found.chat(LONG + "three")
        both_find(found, LONG + "three")

        server.kill()
        assert found.chat(LONG + "three").status == 200
        wait_until(
            lambda: found.chat(LONG + "three").headers[BLOCKS] in (None, "0"), "none is found"
        )
        server.start()
        both_find(found, LONG + "three")
