"""`inferway bench epp`: CPU time of the picker per request and per streamed chunk, beside a picker
that decides nothing, and ours with a stopwatch around the route; all behind the same Envoy, loaded
in turns."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from inferway_bench import conversations
from inferway_bench.conversations import BodyTemplate
from inferway_bench.cpu import cpu_seconds
from inferway_bench.epp.envoy import configuration, find_envoy, messages
from inferway_bench.epp.results import Arm, Case, EppRun
from inferway_bench.load import Load
from inferway_bench.machine import command_line, this_machine
from inferway_bench.processes import answers, free_port, running, wait_until
from inferway_bench.progress import OnStep

_ARMS = ("echo", "bare", "ours", "timed")


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often."""

    repeats: int = 5
    seconds: int = 4
    warm_up_seconds: int = 2
    idle_seconds: float = 6.0
    connections: int = 8
    events: int = 50  # of a stream


QUICK = Plan(repeats=2, seconds=2, warm_up_seconds=1, idle_seconds=2.0)


@dataclass(slots=True)
class _Door:
    """A picker, and where clients reach it through Envoy."""

    name: str
    url: str
    pid: int
    admin_port: int
    log: Path
    idle: float = 0.0  # seconds of CPU time a second without requests
    cpu_us: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    messages: list[float] = field(default_factory=list)
    route_us: list[float] = field(default_factory=list)

    def measure(self, load: Load, seconds: int, first_number: int) -> None:
        cpu, sent, timed = (
            cpu_seconds(self.pid),
            messages(self.admin_port, self.name),
            self._timed(),
        )
        result = load.run(self.url, seconds, first_number)
        if (timed_now := self._timed()) is not None and timed is not None:
            requests, ns = timed_now["requests"] - timed["requests"], timed_now["route_ns"]
            self.route_us.append(round((ns - timed["route_ns"]) / 1e3 / requests, 1))
        used = cpu_seconds(self.pid) - cpu - self.idle * result.microseconds / 1e6
        self.cpu_us.append(used * 1e6 / result.requests)
        self.messages.append((messages(self.admin_port, self.name) - sent) / result.requests)
        self.rates.append(result.requests_per_second)

    def _timed(self) -> dict[str, int] | None:
        """What the one with the stopwatch has printed last."""
        if self.name != "timed":
            return None
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return msgspec.json.decode(lines[-1], type=dict[str, int])

    def taken(self) -> Arm:
        """What was measured since the last call."""
        arm = Arm(
            [round(us, 1) for us in self.cpu_us],
            [round(rate, 1) for rate in self.rates],
            [round(number, 2) for number in self.messages],
            self.route_us,
        )
        self.cpu_us, self.rates, self.messages, self.route_us = [], [], [], []
        return arm


def run_epp(root: Path, plan: Plan, on_step: OnStep) -> EppRun:
    """With the model in the directory `root`. Raises BenchError."""
    machine, binary, model = this_machine(), find_envoy(), str(root)
    short, long = conversations.short_chat(model), conversations.chat_of_8k_tokens(model)
    loads = {"a chat of two messages": short, "a chat of 30 turns": long}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="inferway-epp-")))
        on_step("starting engines, pickers and Envoy")
        engines = [
            stack.enter_context(_engine(model, plan.events, directory / f"engine-{i}"))
            for i in range(2)
        ]
        doors = stack.enter_context(_doors(binary, engines, directory, short[0].body(0)))
        on_step("what they take without requests")
        _measure_idle(doors, plan.idle_seconds)
        numbers = iter(range(1, 10**9, 10**6))
        taken = {}
        streamed = {f"the first, streamed in {plan.events} events": _streamed(short)}
        for name, templates in (loads | streamed).items():
            taken[name] = _measured(doors, name, templates, plan, numbers, on_step)
    cases = [
        Case(name, len(templates[0].body(0)), **arms)
        for (name, templates), arms in zip((loads | streamed).items(), taken.values(), strict=True)
    ]
    return EppRun(
        machine=machine,
        command=shlex.join(command_line()),
        envoy=_version(binary),
        seconds=plan.seconds,
        connections=plan.connections,
        events=plan.events,
        cases=cases[:-1],
        stream=cases[-1],
        idle_ms={door.name: round(door.idle * 1e3, 2) for door in doors},
    )


def _measure_idle(doors: Sequence[_Door], seconds: float) -> None:
    before = [cpu_seconds(door.pid) for door in doors]
    time.sleep(seconds)
    for door, cpu in zip(doors, before, strict=True):
        door.idle = (cpu_seconds(door.pid) - cpu) / seconds


def _measured(
    doors: Sequence[_Door],
    name: str,
    templates: Sequence[BodyTemplate],
    plan: Plan,
    numbers: Iterator[int],
    on_step: OnStep,
) -> dict[str, Arm]:
    load = Load(templates, connections=plan.connections)
    for door in doors:
        on_step(f"{name}: warming up {door.name}")
        load.run(door.url, plan.warm_up_seconds, next(numbers))
    for repeat in range(plan.repeats):
        for door in doors:
            on_step(f"{name}: {door.name}, {repeat + 1} of {plan.repeats}")
            door.measure(load, plan.seconds, next(numbers))
    return {door.name: door.taken() for door in doors}


def _streamed(templates: Sequence[BodyTemplate]) -> list[BodyTemplate]:
    return [BodyTemplate(t.before, t.after[:-1] + b',"stream":true}', t.session) for t in templates]


@contextmanager
def _engine(model: str, events: int, log: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "inferway_bench.epp.engine", "--model", model, "--root", model]
    with running([*command, "--events", str(events)], log) as process:
        wait_until(lambda: log.read_bytes().endswith(b"}\n"), "an engine", process, log)
        url: str = msgspec.json.decode(log.read_bytes())["url"]
        yield url


@contextmanager
def _doors(
    binary: Path, engines: Sequence[str], directory: Path, body: bytes
) -> Iterator[list[_Door]]:
    with ExitStack() as stack:
        logs = {name: directory / name for name in (*_ARMS, "envoy")}
        address = engines[0].removeprefix("http://")
        picked: set[int] = set()
        while len(picked) < 2 * len(_ARMS) + 1:
            picked.add(free_port())  # it may be told twice
        admin, *left = picked
        ports, clients = (dict(zip(_ARMS, left[start::2], strict=True)) for start in (0, 1))
        commands = {
            **{
                name: [
                    sys.executable,
                    "-m",
                    f"inferway_bench.epp.{name}",
                    str(ports[name]),
                    address,
                ]
                for name in ("echo", "bare")
            },
            "ours": _ours(engines, ports["ours"]),
            "timed": [
                sys.executable,
                "-m",
                "inferway_bench.epp.timed",
                str(ports["timed"]),
                *engines,
            ],
        }
        pids = {}
        for name, command in commands.items():
            log = logs[name]
            process = stack.enter_context(running(command, log))
            wait_until(lambda log=log: b"listening on" in log.read_bytes(), name, process, log)  # type: ignore[misc]
            pids[name] = process.pid
        config = directory / "envoy.json"
        config.write_bytes(
            configuration({name: (clients[name], ports[name]) for name in _ARMS}, admin)
        )
        proxy = [str(binary), "-c", str(config), "--concurrency", "1", "--disable-hot-restart"]
        envoy_log = logs["envoy"]
        envoy = stack.enter_context(running([*proxy, "--log-level", "warning"], envoy_log))
        doors = [
            _Door(name, f"http://127.0.0.1:{clients[name]}", pids[name], admin, logs[name])
            for name in _ARMS
        ]
        for door in doors:
            url = f"{door.url}/v1/chat/completions"
            wait_until(lambda url=url: answers(url, body), door.name, envoy, envoy_log)  # type: ignore[misc]
        yield doors


def _ours(engines: Sequence[str], port: int) -> list[str]:
    command = [str(Path(sys.executable).with_name("inferway")), "epp"]
    for url in engines:
        command += ["--engine", url]
    command += ["--host", "127.0.0.1", "--grpc-port", str(port), "--secure-serving=false"]
    return [*command, "--grpc-health-port", "0", "--metrics-port", "0", "--access-log", "none"]


def _version(binary: Path) -> str:
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"/(\d+\.\d+\.\d+)/", said)
    return f"Envoy {found[1]}" if found else said.strip()
