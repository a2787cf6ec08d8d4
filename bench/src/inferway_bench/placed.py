"""Routers that run, each with two trivial engines of its own, ready to be loaded in turns."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from inferway_bench import conversations
from inferway_bench.cpu import cpu_seconds
from inferway_bench.engine_prompts import EnginePrompts
from inferway_bench.load import Load, LoadResult
from inferway_bench.processes import answers, free_port, get, request, running, wait_until
from inferway_bench.progress import OnStep
from inferway_bench.routers import BLOCK_SIZE, EngineAddress, Place, Router

NUM_ENGINES = 2


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load."""

    name: str
    what: str
    load: Load


@dataclass(frozen=True, slots=True)
class Placed:
    """A router that runs."""

    router: Router
    place: Place
    pid: int

    def measure(self, load: Load, seconds: int, first_number: int) -> tuple[LoadResult, float]:
        """One repeat: load, and the CPU seconds that it took."""
        before = cpu_seconds(self.pid)
        result = load.run(self.place.url, seconds, first_number)
        return result, cpu_seconds(self.pid) - before


def cases(model: str, connections: int) -> list[Case]:
    short = conversations.short_chat(model)
    long = conversations.chat_of_8k_tokens(model)
    return [
        Case(
            "0.7 kB chat",
            f"{len(short)} chats of two messages, {len(short[0].body(0))} bytes and more, "
            "each request with a new last turn",
            Load(short, connections=connections),
        ),
        Case(
            "8k-token chat",
            f"4 conversations of about 8,000 tokens and 30 turns, {len(long[0].body(0)):,} bytes, "
            f"{len(long)} different last turns, each request with a new one",
            Load(long, connections=connections),
        ),
    ]


@contextmanager
def placed(routers: Sequence[Router], model: str, on_step: OnStep) -> Iterator[list[Placed]]:
    """All of `routers`, ready, in their order. Raises BenchError when one cannot be started."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="inferway-bench-")))
        ready = []
        for i, router in enumerate(routers):
            on_step(f"starting {router.label}")
            place_directory = directory / str(i)
            place_directory.mkdir()
            ready.append(stack.enter_context(_placed(router, model, place_directory)))
        yield ready


@contextmanager
def _placed(router: Router, model: str, directory: Path) -> Iterator[Placed]:
    with ExitStack() as stack:
        engines = [
            stack.enter_context(_engine(model, directory / f"engine-{i}.log", router))
            for i in range(NUM_ENGINES)
        ]
        place = Place(free_port(), free_port(), engines, model, directory)
        log = directory / "router.log"
        process = stack.enter_context(running(router.command(place), log))
        wait_until(lambda: answers(f"{place.url}/health"), router.label, process, log)
        body = conversations.short_chat(model)[0].body(0)
        url = f"{place.url}/v1/chat/completions"
        wait_until(lambda: answers(url, body), router.label, process, log)
        yield Placed(router, place, process.pid)


@contextmanager
def _engine(model: str, log: Path, router: Router) -> Iterator[EngineAddress]:
    command = [sys.executable, "-m", "inferway_bench.upstream", "--model", model, "--root", model]
    command += ["--block-size", str(BLOCK_SIZE)]
    if router.engines_render:
        command.append("--enable-scale-out")
    with running(command, log) as process:
        wait_until(lambda: log.read_bytes().endswith(b"}\n"), "a trivial engine", process, log)
        url: str = msgspec.json.decode(log.read_bytes())["url"]
        endpoint: str = msgspec.json.decode(get(f"{url}/kv_event_sources"))["0"]["endpoint"]
        yield EngineAddress(url, endpoint.replace("*", "127.0.0.1"))


def tell_events(placed: Sequence[Placed], model: str, on_step: OnStep) -> None:
    """Each engine publishes half of the conversations, until the router has them."""
    prompts = EnginePrompts(model)
    sessions = conversations.sessions_without_last_turn(model)
    token_ids = [prompts.cached_token_ids(body) for body in sessions]
    prompts.close()
    last_turn = conversations.chat_of_8k_tokens(model)[0].body(1)
    for s in placed:
        if not s.router.matches_events:
            continue
        on_step(f"publishing KV events to {s.router.label}")

        def matches(s: Placed = s) -> bool:
            for i, ids in enumerate(token_ids):
                body = json.dumps({"token_ids": ids}).encode()
                request(f"{s.place.engines[i % NUM_ENGINES].url}/bench/publish", body)
            return s.router.matched_share(s.place, last_turn) > 0.9

        wait_until(matches, f"{s.router.label}: no match of what its engines published")
