"""Routers that run, each with two trivial engines of its own, and their loads: all in turns, so
that whatever else the machine does hits all alike.

A load is a closed loop of `wrk`: each connection sends its next request when it has its answer.
That is good for CPU time per request, which is what we count; its latencies are those of a
saturated router.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from inferway_bench import conversations
from inferway_bench.conversations import NUMBER_DIGITS, BodyTemplate, EnginePrompts
from inferway_bench.cpu import cpu_seconds
from inferway_bench.processes import BenchError, OnStep, answers, get, request, running, wait_until
from inferway_bench.routers import (
    BLOCK_SIZE,
    Counters,
    EngineAddress,
    Place,
    Router,
    RunningRouter,
    place_for,
    running_router,
    since,
)
from inferway_bench.templates import FOLDER
from inferway_bench.trivial_engine import Pace

NUM_ENGINES = 2
CHATS = "/v1/chat/completions"


class Loaded(Protocol):
    """A process that is loaded: a router, or what a proxy asks."""

    @property
    def label(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def pid(self) -> int: ...


_Loaded = TypeVar("_Loaded", bound=Loaded)


class Repeat(NamedTuple):
    """One load: what it was, the CPU time that it took of the process tree, and what was counted
    meanwhile."""

    result: LoadResult
    cpu_seconds: float
    counted: Counters


def in_turns(
    ready: Sequence[_Loaded],
    load: Load,
    what: str,
    seconds: int,
    repeats: int,
    first_numbers: Iterator[int],
    count: Callable[[_Loaded], Counters],
    on_step: OnStep,
) -> list[list[Repeat]]:
    """Load each of `ready` for `seconds` in every repeat, after one to warm up, and return its
    repeats. `count` reads what is counted. Raises BenchError when a request fails."""
    for one in ready:
        on_step(f"{what}: warming up {one.label}")
        load.run(one.url, seconds, next(first_numbers))
    found: list[list[Repeat]] = [[] for _ in ready]
    for repeat in range(repeats):
        for one, mine in zip(ready, found, strict=True):
            on_step(f"{what}: {one.label}, {repeat + 1} of {repeats}")
            counted, cpu = count(one), cpu_seconds(one.pid)
            result = load.run(one.url, seconds, next(first_numbers))
            used = cpu_seconds(one.pid) - cpu
            mine.append(Repeat(result, used, since(counted, count(one))))
    return found


@contextmanager
def started_routers(
    routers: Sequence[Router], model: str, on_step: OnStep
) -> Iterator[list[RunningRouter]]:
    """Start `routers`, and yield them, ready, in their order. Raises BenchError if one fails."""
    body = conversations.short_chat(model)[0].body(0)

    def answers_a_chat(place: Place) -> bool:
        return answers(f"{place.url}/health") and answers(place.url + CHATS, body)

    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="inferway-bench-")))
        ready = []
        for i, router in enumerate(routers):
            on_step(f"starting {router.label}")
            can_render = router.matches_events and not router.is_ours  # peers let engines render
            logs = [directory / f"{i}-{j}.log" for j in range(NUM_ENGINES)]
            started = (trivial_engines(model, log, can_render=can_render) for log in logs)
            engines = [engine for one in started for engine in stack.enter_context(one)]
            place = place_for(engines, model, directory / str(i))
            ready.append(stack.enter_context(running_router(router, place, answers_a_chat)))
        yield ready


@contextmanager
def trivial_engines(
    model: str, log: Path, count: int = 1, can_render: bool = False
) -> Iterator[list[EngineAddress]]:
    """Start trivial engines in one process, and yield their addresses. Raises BenchError when it
    does not start."""
    command = [sys.executable, "-m", "inferway_bench.trivial_engine", model, str(BLOCK_SIZE)]
    command += [str(count), *(["--enable-scale-out"] if can_render else [])]
    with running(command, log) as process:
        wait_until(lambda: log.read_bytes().endswith(b"]\n"), "trivial engines", process, log)
        urls = msgspec.json.decode(log.read_bytes(), type=list[str])
        sources = (msgspec.json.decode(get(f"{url}/kv_event_sources")) for url in urls)
        endpoints = (source["0"]["endpoint"].replace("*", "127.0.0.1") for source in sources)
        yield list(map(EngineAddress, urls, endpoints))


def publish_events(ready: Sequence[RunningRouter], model: str, on_step: OnStep) -> None:
    """Let the engines of each router that matches events publish half of the long conversations
    each, until the router has them. Raises BenchError when it does not come to have them."""
    prompts = EnginePrompts(model)
    sessions = conversations.sessions_without_last_turn(model)
    token_ids = [prompts.cached_token_ids(body) for body in sessions]
    prompts.close()
    last_turn = conversations.chat_of_8k_tokens(model)[0].body(1)
    for one in ready:
        if not one.router.matches_events:
            continue
        on_step(f"publishing KV events to {one.router.label}")

        def matches(one: RunningRouter = one) -> bool:
            for i, ids in enumerate(token_ids):
                engine = one.place.engines[i % NUM_ENGINES]
                request(f"{engine.url}/bench/publish", msgspec.json.encode({"token_ids": ids}))
            return one.router.matched_share(one.place, last_turn) > 0.9

        wait_until(matches, f"{one.router.label}: no match of what its engines published")


def set_pace(engines: Sequence[EngineAddress], tokens: int, seconds: float) -> None:
    """Let `engines` stream from now on as `trivial_engine.Pace` says."""
    for engine in engines:
        request(f"{engine.url}/bench/streams", msgspec.json.encode(Pace(tokens, seconds)))


def events_written(engines: Sequence[EngineAddress]) -> int:
    """Return the number of events that `engines` have written into streams so far."""
    pages = (get(f"{engine.url}/bench/written") for engine in engines)
    return sum(msgspec.json.decode(page, type=dict[str, int])["events"] for page in pages)


# What the official Python client sends, so that nobody is measured on three headers.
_HEADERS = (FOLDER / "openai_headers.txt").read_text().splitlines()

_SCRIPT = FOLDER / "load.lua"


class LoadResult(msgspec.Struct, frozen=True):
    """The counts that `wrk` has made of one load."""

    requests: int
    microseconds: int
    bad_status: int  # answers that are neither 2xx nor 3xx
    socket_errors: int
    p50_us: int


@dataclass(frozen=True, slots=True)
class Load:
    """POSTs `templates` in turn to /v1/chat/completions, `connections` at a time."""

    templates: Sequence[BodyTemplate]
    connections: int

    def run(self, url: str, seconds: int, first_number: int) -> LoadResult:
        """Load `url` for `seconds`; last turns are numbered from `first_number` on.

        Raises BenchError when wrk is missing or fails, or when an answer was not a success.
        """
        wrk = find_wrk()
        with TemporaryDirectory(prefix="inferway-bench-") as name:
            directory = Path(name)
            self._write(directory)
            command = [wrk, "-t1", f"-c{self.connections}", f"-d{seconds}s", "--timeout", "30s"]
            command += ["-s", str(directory / "load.lua"), url]
            command += ["--", name, str(len(self.templates)), str(first_number)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"wrk ended with {done.returncode}: {done.stderr.strip()!r}")
        return checked(parse_output(done.stdout), url)

    def _write(self, directory: Path) -> None:
        script = _SCRIPT.read_text().replace("DIGITS", str(NUMBER_DIGITS))
        (directory / "load.lua").write_text(script)
        for i, template in enumerate(self.templates, start=1):
            length = len(template.body(0))
            lines = ["POST /v1/chat/completions HTTP/1.1", *_HEADERS, f"Content-Length: {length}"]
            head = "\r\n".join(lines).encode() + b"\r\n\r\n"
            (directory / f"{i}.before").write_bytes(head + template.before)
            (directory / f"{i}.after").write_bytes(template.after)


def find_wrk() -> str:
    """Return the path of `wrk`. Raises BenchError with the cure."""
    found = shutil.which("wrk")
    if found is None:
        raise BenchError("wrk: not found in PATH; fix: apt-get install wrk")
    return found


def parse_output(text: str) -> LoadResult:
    """Parse the line that our script writes at the end of wrk's output."""
    for line in text.splitlines():
        if line.startswith("INFERWAY "):
            return msgspec.json.decode(line.removeprefix("INFERWAY "), type=LoadResult)
    raise BenchError(f"wrk: no result in its output: {text[-500:]!r}")


def checked(result: LoadResult, url: str) -> LoadResult:
    """`result` if every answer was a success. CPU time over failures would say nothing."""
    if result.requests == 0 or result.bad_status or result.socket_errors:
        raise BenchError(
            f"{url}: {result.requests} answers, {result.bad_status} of them not 2xx, "
            f"{result.socket_errors} socket errors; all must succeed to be counted"
        )
    return result
