"""The gateway in front of engines that Ray manages, by itself and as Ray's replica."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.ray.conftest import Served, StartApp, process_at, text, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


class GatewayProcess:
    """`inferway serve` with these arguments, on a free port."""

    def __init__(self, *arguments: str) -> None:
        code = "from inferway.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if found := re.search(r"listening on (http://\S+)", line):
                self.served = Served(found[1])
                return
        raise AssertionError(self.log)

    def engines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.served.get("/admin/engines")["engines"]
        return found

    def healthy(self) -> list[str]:
        return sorted(each["name"] for each in self.engines() if each["healthy"])

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)


@pytest.fixture
def gateway(serve_port: int) -> Iterator[Any]:
    del serve_port
    started: list[GatewayProcess] = []

    def start(*arguments: str) -> GatewayProcess:
        started.append(GatewayProcess(*arguments))
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_the_engines_of_a_deployment_are_found_and_followed(
    start_engines: StartApp, gateway: Any
) -> None:
    from ray import serve

    start_engines("found", replicas=2)
    front = gateway("--engines-ray", "found/Engine")
    until(lambda: len(front.healthy()) == 2)

    assert front.served.cached(text(1)) == 0
    until(lambda: front.served.cached(text(1)) > 500)
    start_engines("found", replicas=3)
    until(lambda: len(front.healthy()) == 3)
    serve.delete("found")
    until(lambda: front.engines() == [])


def test_a_deployment_that_is_not_there_yet_is_waited_for(
    start_engines: StartApp, gateway: Any
) -> None:
    front = gateway("--engines-ray", "later/Engine")
    assert front.engines() == []

    start_engines("later", replicas=1)

    until(lambda: len(front.healthy()) == 1)


def test_ray_runs_gateways_on_ports_of_their_own(start_engines: StartApp) -> None:
    from ray import serve

    from inferway_ray.programs import GatewayProgram

    start_engines("behind", replicas=2)
    gateways = serve.deployment(
        name="Gateway",
        num_replicas=2,
        health_check_period_s=1,
        ray_actor_options={"num_cpus": 0.01},
    )(GatewayProgram)
    bound = gateways.bind(["--engines-ray", "behind/Engine"])
    handle = serve.run(bound, name="gateways", route_prefix=None)
    try:
        urls = handle.broadcast("where").results()
        assert len(set(urls)) == 2
        for url in urls:
            until(partial(ready, url))
        assert Served(urls[0]).cached(text(7)) == 0
        until(lambda: Served(urls[1]).cached(text(7)) > 500)

        os.kill(process_at(urls[0], b"serve"), signal.SIGKILL)

        assert Served(urls[1]).cached(text(7)) > 500
        until(lambda: len(others := where(handle)) == 2 and urls[0] not in others)
    finally:
        serve.delete("gateways")


def ready(url: str) -> bool:
    try:
        return len(Served(url).get("/ready")["engines"]) == 2
    except OSError:
        return False


def where(handle: Any) -> list[str]:
    try:
        found: list[str] = handle.broadcast("where").results()
    except Exception:
        return []
    return found
