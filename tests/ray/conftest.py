"""A real Ray with Serve on a free port, and simulated engines as replicas' programs."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"  # as `inferway simulate` names its own
SECONDS = 120.0  # a replica that starts on a busy machine takes 20


def until(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """What the condition returns, once that is true; asked again and again."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it has not come true in time"
        time.sleep(0.05)
    return found


def text(number: int, words: int = 200) -> str:
    """A text of its own, from the first word on."""
    return f"Chat {number}. " + " ".join(f"w{number}x{i}" for i in range(words))


@dataclass(frozen=True)
class Served:
    """A server of OpenAI's API."""

    url: str

    def post(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[int, bytes]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()

    def cached(self, *contents: str, **fields: Any) -> int:
        """Ask, and return how many tokens of the prompt the engine had in its cache."""
        messages = [{"role": "user", "content": each} for each in contents]
        status, raw = self.post({"model": MODEL, "messages": messages, "max_tokens": 2, **fields})
        assert status == 200, raw
        return int(json.loads(raw)["usage"]["prompt_tokens_details"]["cached_tokens"])

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=SECONDS) as answer:
            return json.loads(answer.read())


def process_at(url: str, command: bytes) -> int:
    """The process of `inferway COMMAND` that was started with the port of this URL."""
    port = url.rpartition(":")[2].encode()
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if port in words and command in words and b"inferway_ray.keeper" not in words:
            return int(process)
    raise AssertionError(f"nobody was started at {url}")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="session")
def serve_port() -> Iterator[int]:
    """Ray and Serve are running; this is the proxy's port."""
    ray = pytest.importorskip("ray")
    from ray import serve

    port = free_port()
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        logging_level="ERROR",
        log_to_driver=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield port
    serve.shutdown()
    ray.shutdown()


StartApp = Callable[..., Any]


@pytest.fixture
def start_engines(serve_port: int) -> Iterator[StartApp]:
    """start_engines(name of the app, deployment's class, arguments of `simulate`, **options): a
    Front behind the proxy, and engines behind that. Returns what clients reach."""
    from ray import serve

    from inferway_ray.ingress import OpenAiIngress
    from inferway_ray.programs import INFERWAY, EngineProgram
    from inferway_ray.router import router_config

    apps: list[str] = []

    def start(
        app: str,
        engine: Any = EngineProgram,
        simulate: Sequence[str] = (),
        config: Any = None,
        replicas: int = 2,
    ) -> Served:
        command = [*INFERWAY, "simulate", "--port", "$port", *simulate]
        light = {"num_cpus": 0.01}
        engines = serve.deployment(
            name="Engine",
            num_replicas=replicas,
            max_ongoing_requests=64,
            health_check_period_s=1,
            request_router_config=config or router_config(),
            ray_actor_options=light,
        )(engine)
        front = serve.deployment(name="Front", ray_actor_options=light)(OpenAiIngress)
        apps.append(app)
        bound = engines.bind(command, 60.0, "127.0.0.1")
        serve.run(front.bind(bound), name=app, route_prefix=f"/{app}")
        return Served(f"http://127.0.0.1:{serve_port}/{app}")

    yield start
    for app in apps:
        serve.delete(app)
