"""`inferway bench route`: CPU time that a router takes per request, ours beside its peers.

Each router gets two trivial engines of its own. All of them are started first and then loaded
in turns, so that whatever else the machine does hits all alike.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from inferway.bench import conversations
from inferway.bench.cpu import cpu_seconds, resident_bytes
from inferway.bench.engine_prompts import EnginePrompts
from inferway.bench.load import Load, LoadResult
from inferway.bench.machine import this_machine
from inferway.bench.parts import measure_parts
from inferway.bench.processes import (
    answers,
    free_port,
    get,
    request,
    running,
    wait_until,
)
from inferway.bench.results import Measurement, RouteRun
from inferway.bench.routers import BLOCK_SIZE, EngineAddress, Place, Router, since

OnStep = Callable[[str], None]

NUM_ENGINES = 2


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load."""

    name: str
    what: str
    load: Load


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often."""

    repeats: int = 7
    seconds: int = 4
    warm_up_seconds: int = 2
    connections: int = 8
    part_repeats: int = 400


@dataclass(slots=True)
class Started:
    """A router that runs, and what was measured of it."""

    router: Router
    place: Place
    pid: int
    results: dict[str, list[tuple[LoadResult, float]]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def measure(self, case: Case, seconds: int, first_number: int) -> None:
        """One repeat: load, and the CPU time that it took."""
        before = cpu_seconds(self.pid)
        result = case.load.run(self.place.url, seconds, first_number)
        used = cpu_seconds(self.pid) - before
        self.results.setdefault(case.name, []).append((result, used))


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


def run_route(routers: Sequence[Router], root: Path, plan: Plan, on_step: OnStep) -> RouteRun:
    """Measure all `routers` with the model in the directory `root`.

    Raises BenchError when something cannot be started, fails a request, or does not match what
    it should match.
    """
    model = str(root)
    loads = cases(model, plan.connections)
    machine = this_machine()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="inferway-route-")))
        started = []
        for i, router in enumerate(routers):
            on_step(f"starting {router.label}")
            place_directory = directory / str(i)
            place_directory.mkdir()
            started.append(stack.enter_context(_started(router, model, place_directory)))
        _tell_events(started, model, on_step)
        _measure(started, loads, plan, on_step)
        measurements = [_measurement(s, case.name) for s in started for case in loads]
    on_step("timing the steps of our path")
    parts = measure_parts(root, loads[-1].load.templates, BLOCK_SIZE, plan.part_repeats)
    return RouteRun(
        machine=machine,
        command=shlex.join(["inferway", *sys.argv[1:]]),
        seconds=plan.seconds,
        connections=plan.connections,
        bodies={case.name: case.what for case in loads},
        measurements=measurements,
        parts=parts,
    )


@contextmanager
def _started(router: Router, model: str, directory: Path) -> Iterator[Started]:
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
        yield Started(router, place, process.pid)


@contextmanager
def _engine(model: str, log: Path, router: Router) -> Iterator[EngineAddress]:
    command = [sys.executable, "-m", "inferway.bench.upstream", "--model", model, "--root", model]
    command += ["--block-size", str(BLOCK_SIZE)]
    if router.engines_render:
        command.append("--enable-scale-out")
    with running(command, log) as process:
        wait_until(lambda: log.read_bytes().endswith(b"}\n"), "a trivial engine", process, log)
        url: str = msgspec.json.decode(log.read_bytes())["url"]
        endpoint: str = msgspec.json.decode(get(f"{url}/kv_event_sources"))["0"]["endpoint"]
        yield EngineAddress(url, endpoint.replace("*", "127.0.0.1"))


def _tell_events(started: Sequence[Started], model: str, on_step: OnStep) -> None:
    """Each engine publishes half of the conversations, until the router has them."""
    prompts = EnginePrompts(model)
    sessions = conversations.sessions_without_last_turn(model)
    token_ids = [prompts.cached_token_ids(body) for body in sessions]
    prompts.close()
    last_turn = conversations.chat_of_8k_tokens(model)[0].body(1)
    for s in started:
        if not s.router.matches_events:
            continue
        on_step(f"publishing KV events to {s.router.label}")

        def matches(s: Started = s) -> bool:
            for i, ids in enumerate(token_ids):
                body = json.dumps({"token_ids": ids}).encode()
                request(f"{s.place.engines[i % NUM_ENGINES].url}/bench/publish", body)
            return s.router.matched_share(s.place, last_turn) > 0.9

        wait_until(matches, f"{s.router.label}: no match of what its engines published")


def _measure(
    started: Sequence[Started], loads: Sequence[Case], plan: Plan, on_step: OnStep
) -> None:
    numbers = iter(range(1, 10**9, 10**6))
    for case in loads:
        for s in started:
            on_step(f"{case.name}: warming up {s.router.label}")
            if plan.warm_up_seconds:
                case.load.run(s.place.url, plan.warm_up_seconds, next(numbers))
        before = [s.router.counters(s.place) for s in started]
        for repeat in range(plan.repeats):
            for s in started:
                on_step(f"{case.name}: {s.router.label}, {repeat + 1} of {plan.repeats}")
                s.measure(case, plan.seconds, next(numbers))
        for s, counters in zip(started, before, strict=True):
            s.notes[case.name] = s.router.evidence(since(counters, s.router.counters(s.place)))


def _measurement(s: Started, case: str) -> Measurement:
    results = s.results[case]
    return Measurement(
        router=s.router.label,
        version=s.router.version,
        case=case,
        cpu_us=[round(used / r.requests * 1e6, 1) for r, used in results],
        requests_per_second=[round(r.requests_per_second) for r, _ in results],
        p50_us=[r.p50_us for r, _ in results],
        p99_us=[r.p99_us for r, _ in results],
        resident_mib=round(resident_bytes(s.pid) / 2**20, 1),
        note=s.notes[case],
    )
