"""Several `inferway serve`, each a process, before the same simulated engines, which run in a
thread of the test's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any

from tests.engines import client
from tests.engines.program import Program
from tests.engines.waiting import wait_until
from tests.replicas.redis_server import free_port
from tests.workers.serving import CHAT, MODEL

from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway_sim.config import LatencyModel, SimulatorConfig
from inferway_sim.engine import SimulatedEngine
from inferway_sim.prepare import prepare_smollm2
from inferway_sim.rendered import RenderedModel

SLOW_ANSWERS = LatencyModel(inter_token_latency=0.1)  # 400 s for the longest


@dataclass
class Gateways:
    """They, and the engines behind them."""

    programs: list[Program]
    engines: list[str]  # URLs
    words: list[Sequence[str]]  # that each was started with
    directory: Path
    stack: ExitStack
    streams: list[HTTPResponse] = field(default_factory=list)

    def stream(self, gateway: int, text: str, tokens: int = 4000) -> str:
        """The engine of an answer that goes on until `end_all`."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        answer = client.open_stream(f"{self.programs[gateway].url}{CHAT}", body)
        self.streams.append(answer)
        assert answer.readline().startswith(b"data:")
        return str(answer.headers["x-inferway-engine"])

    def end_all(self) -> None:
        while self.streams:
            self.streams.pop().close()

    def chat(self, gateway: int, text: str, **fields: Any) -> client.Answer:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
        return client.post(f"{self.programs[gateway].url}{CHAT}", {**body, **fields})

    def metric(self, gateway: int, name: str, labels: str = "") -> float:
        """The sum of the samples of that name whose labels contain a text; 0 if there is none."""
        page = client.get(f"{self.programs[gateway].url}/metrics").raw.decode()
        found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", page, re.MULTILINE)
        return sum(float(value) for told, value in found if labels in told)

    def in_flight(self, gateway: int) -> int:
        """How many requests the gateway believes to be with engines, whoever has sent them."""
        engines = client.get(f"{self.programs[gateway].url}/admin/engines").json["engines"]
        return sum(each["load"]["in_flight"] for each in engines)

    def peers(self, gateway: int) -> dict[str, Any]:
        report: dict[str, Any] = client.get(f"{self.programs[gateway].url}/admin/peers").json
        return report

    def num_heard(self, gateway: int) -> int:
        return sum(each["state"] == "heard" for each in self.peers(gateway)["peers"])

    def all_hear(self, among: Sequence[int] | None = None) -> None:
        """Wait until each of these hears all the others."""
        among = range(len(self.programs)) if among is None else among
        for gateway in among:
            wait_until(
                lambda gateway=gateway: self.num_heard(gateway) == len(among) - 1,  # type: ignore[misc]
                f"gateway {gateway} hears all others",
                self.programs[gateway].log_text,
            )

    def all_count(self, requests: int, among: Sequence[int] | None = None) -> None:
        """Wait until each of these counts so many requests with the engines."""
        for gateway in range(len(self.programs)) if among is None else among:
            wait_until(
                lambda gateway=gateway: self.in_flight(gateway) == requests,  # type: ignore[misc]
                f"gateway {gateway} counts {requests} requests",
                lambda gateway=gateway: self.peers(gateway),  # type: ignore[misc]
            )

    def num_silences(self) -> int:
        """How often a gateway has taken another one for gone."""
        return sum(program.log_text().count("is silent") for program in self.programs)

    def start(self, gateway: int) -> None:
        """Another process in the place of one that has ended."""
        log = self.directory / f"gateway{gateway}-again.log"
        self.programs[gateway] = self.stack.enter_context(Program(self.words[gateway], log))


@contextmanager
def simulated(number: int, latency: LatencyModel = SLOW_ANSWERS) -> Iterator[list[str]]:
    """The URLs of so many engines."""
    loop, stack, renderer = asyncio.new_event_loop(), AsyncExitStack(), Renderer()
    thread = Thread(target=loop.run_forever)
    thread.start()
    root = str(prepare_smollm2())
    key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(root))
    config = SimulatorConfig(root, served_model_names=(MODEL,), latency=latency)

    async def start() -> list[str]:
        engines = [
            SimulatedEngine(config, RenderedModel(renderer, key, config.max_model_len))
            for _ in range(number)
        ]
        return [(await stack.enter_async_context(engine)).url for engine in engines]

    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        renderer.close()


@contextmanager
def gateways(
    directory: Path,
    *flags: str,
    number: int = 2,
    engines: int = 8,
    redis: str | None = None,
    latency: LatencyModel = SLOW_ANSWERS,
) -> Iterator[Gateways]:
    """`flags`: of all gateways. They tell each other over Redis if its URL is given."""
    with ExitStack() as stack:
        urls = stack.enter_context(simulated(engines, latency))
        ports = [free_port() for _ in range(number)]
        settings = directory / "gateway.yaml"
        settings.write_text(
            "probe: {join: false, one_in: 0}\n"
        )  # each engine has what is sent here
        peers = [word for port in ports for word in ("--peers", f"127.0.0.1:{port}")]
        words: list[Sequence[str]] = [
            [
                *("serve", *urls, "--config", str(settings), "--scrape-seconds", "0.05", *flags),
                *(["--peers-redis", redis] if redis else [*peers, "--peers-port", str(port)]),
            ]
            for port in ports
        ]
        logs = [directory / f"gateway{place}.log" for place in range(number)]
        started = [Program(each, log) for each, log in zip(words, logs, strict=True)]
        with ThreadPoolExecutor(number) as pool:  # at once: each takes seconds
            programs = list(pool.map(stack.enter_context, started))
        found = Gateways(programs, urls, words, directory, stack)
        try:
            yield found
        finally:
            found.end_all()
