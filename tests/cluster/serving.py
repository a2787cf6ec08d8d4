"""`inferway serve --workers 2` before simulated engines, which run in threads of the test's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.engines import client
from tests.engines.client import Answer
from tests.engines.program import Program
from tests.engines.waiting import wait_until
from tests.leftovers import children
from tests.sim import in_a_thread

from inferway_sim.engine import SimulatedEngine

MODEL = "smollm2"
LONG = "You answer in one sentence, you never guess, and you say so when you do not know. " * 4
CHAT = "/v1/chat/completions"
WORKERS = 2


@dataclass
class Serving:
    """A hub, its workers, and the engines behind them."""

    gateway: Program
    engines: Sequence[Program | SimulatedEngine]

    @property
    def url(self) -> str:
        return self.gateway.url

    def chat(self, *contents: str, **fields: Any) -> Answer:
        """The answer to a chat, over a connection of its own."""
        messages = [
            {"role": "assistant" if i % 2 else "user", "content": content}
            for i, content in enumerate(contents)
        ]
        body = {"model": MODEL, "messages": messages, "max_tokens": 4, **fields}
        return client.post(f"{self.url}{CHAT}", body)

    def insist(self, *contents: str) -> Answer:
        """The answer to a chat, over as many connections as it takes: those of a worker that is
        killed end."""

        def ask() -> Answer | None:
            try:
                return self.chat(*contents)
            except (OSError, HTTPException):
                return None

        return wait_until(ask, "a worker answers")

    def by_another(self, than: Answer, *contents: str, **fields: Any) -> Answer:
        """The answer of another worker than the one that has given that answer."""

        def ask() -> Answer | None:
            answer = self.chat(*contents, **fields)
            return None if worker_of(answer) == worker_of(than) else answer

        return wait_until(ask, "another worker answers")

    def metric(self, name: str, labels: str = "") -> float:
        """The sum of the samples of that name whose labels contain a text; 0 if there is none."""
        page = client.get(f"{self.url}/metrics").raw.decode()
        found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", page, re.MULTILINE)
        return sum(float(value) for told, value in found if labels in told)

    def workers(self) -> list[int]:
        """The process ids of the workers there are."""
        found = sorted(children(self.gateway.pid))
        return [pid for pid in found if b"inferway.cli.worker" in _command(pid)]

    def all_answer(self, besides: Sequence[int] = ()) -> None:
        """Wait until there are as many workers as there shall be, none of them one of `besides`,
        and each of them has answered."""

        def there() -> bool:
            workers = self.workers()
            return len(workers) == WORKERS and not set(workers) & set(besides)

        wait_until(there, "all workers are there", self.gateway.log_text)
        seen: set[str] = set()

        def answered() -> bool:
            seen.add(worker_of(self.insist("Are you there?")))
            return len(seen) >= WORKERS

        wait_until(answered, "all workers answer", self.gateway.log_text)


def worker_of(answer: Answer) -> str:
    """What is in the ids of all requests that a worker answers, and in no other's."""
    return str(answer.headers["x-request-id"]).partition("-")[0]


@contextmanager
def simulated(*flags: str) -> Iterator[SimulatedEngine]:
    with in_a_thread.simulated("--served-model-name", MODEL, *flags) as engine:
        yield engine


@contextmanager
def simulated_by_a_process(log: Path, *flags: str) -> Iterator[Program]:
    """One that can be killed."""
    with Program(["simulate", "--served-model-name", MODEL, *flags], log) as engine:
        yield engine


@contextmanager
def serving(
    directory: Path, *flags: str, engines: int = 2, engine_flags: Sequence[str] = ()
) -> Iterator[Serving]:
    """`flags`: of the gateway."""
    with ExitStack() as stack:
        started = [stack.enter_context(simulated(*engine_flags)) for _ in range(engines)]
        yield stack.enter_context(serving_of(directory, started, *flags))


@contextmanager
def serving_of(
    directory: Path, engines: Sequence[Program | SimulatedEngine], *flags: str
) -> Iterator[Serving]:
    """`flags`: of the gateway."""
    words = ["serve", *(engine.url for engine in engines), "--workers", str(WORKERS), *flags]
    with Program(words, directory / "gateway.log") as gateway:
        yield Serving(gateway, engines)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""
