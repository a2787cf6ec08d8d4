"""Several `inferway serve`, each a process, before the same simulated engines, which run in
threads of the test's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from tests.cluster.redis_server import free_port
from tests.cluster.serving import CHAT, MODEL, Serving, simulated
from tests.engines import client
from tests.engines.program import Program
from tests.engines.waiting import wait_until

SLOW_ANSWERS = ("--inter-token-latency", "100ms")  # 400 s for the longest


@dataclass
class Gateways:
    """They, and the engines behind them."""

    programs: list[Program]
    words: list[Sequence[str]]  # that each was started with
    directory: Path
    stack: ExitStack
    streams: list[HTTPResponse] = field(default_factory=list)

    def __getitem__(self, gateway: int) -> Serving:
        return Serving(self.programs[gateway], [])

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

    def in_flight(self, gateway: int) -> int:
        """How many requests the gateway believes to be with engines, whoever has sent them."""
        engines = client.get(f"{self.programs[gateway].url}/admin/engines").json["engines"]
        return sum(each["load"]["in_flight"] for each in engines)

    def peers(self, gateway: int) -> dict[str, Any]:
        report: dict[str, Any] = client.get(f"{self.programs[gateway].url}/admin/peers").json
        return report

    def num_heard(self, gateway: int) -> int:
        return sum(each["state"] == "heard" for each in self.peers(gateway)["peers"])

    def all_hear(self) -> None:
        """Wait until each hears all the others."""
        for place, program in enumerate(self.programs):
            wait_until(
                lambda place=place: self.num_heard(place) == len(self.programs) - 1,  # type: ignore[misc]
                f"gateway {place} hears all others",
                program.log_text,
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
def gateways(
    directory: Path,
    *flags: str,
    number: int = 2,
    engines: int = 8,
    redis: str | None = None,
    latency: Sequence[str] = SLOW_ANSWERS,
) -> Iterator[Gateways]:
    """`flags`: of all gateways. They tell each other over Redis if its URL is given."""
    with ExitStack() as stack:
        urls = [stack.enter_context(simulated(*latency)).url for _ in range(engines)]
        ports = [free_port() for _ in range(number)]
        settings = directory / "gateway.yaml"
        settings.write_text("probe: {join: false, one_in: 0}\n")  # engines have what is sent here
        peers = [f"--peers=127.0.0.1:{port}" for port in ports]
        common = ["serve", *urls, "--config", str(settings), "--scrape-seconds", "0.05", *flags]
        words = [
            [*common, *(["--peers-redis", redis] if redis else [*peers, f"--peers-port={port}"])]
            for port in ports
        ]
        logs = [directory / f"gateway{place}.log" for place in range(number)]
        started = [Program(each, log) for each, log in zip(words, logs, strict=True)]
        with ThreadPoolExecutor(number) as pool:  # at once: each takes seconds
            programs = list(pool.map(stack.enter_context, started))
        found = Gateways(programs, [*words], directory, stack)
        try:
            yield found
        finally:
            found.end_all()
