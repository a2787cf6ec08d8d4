"""Several `inferway serve` before the same simulated engines, all of them processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from tests.engines import client
from tests.engines.program import Program
from tests.engines.waiting import wait_until
from tests.kv.index.redis_server import free_port
from tests.workers.serving import CHAT, MODEL, simulated


@dataclass
class Gateways:
    """They, and the engines behind them."""

    programs: list[Program]
    engines: list[Program]
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
    engine_flags: Sequence[str] = ("--inter-token-latency", "10ms"),
) -> Iterator[Gateways]:
    """`flags`: of all gateways. They tell each other over Redis if its URL is given."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(simulated(directory, n, *engine_flags)) for n in range(engines)
        ]
        urls = [engine.url for engine in started]
        ports = [free_port() for _ in range(number)]
        peers = [word for port in ports for word in ("--peers", f"127.0.0.1:{port}")]
        words: list[Sequence[str]] = [
            [
                *("serve", *urls, "--scrape-seconds", "0.05", *flags),
                *(["--index", redis] if redis else [*peers, "--peers-port", str(port)]),
            ]
            for port in ports
        ]
        programs = [
            stack.enter_context(Program(each, directory / f"gateway{place}.log"))
            for place, each in enumerate(words)
        ]
        found = Gateways(programs, started, words, directory, stack)
        try:
            yield found
        finally:
            found.end_all()
