"""`inferway bench epp`: CPU time of the endpoint picker behind a real Envoy, for a request and for
a streamed chunk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec

from inferway_bench import conversations
from inferway_bench.cpu import cpu_seconds
from inferway_bench.dataplane.testbed import CHATS, Load, in_turns, set_pace, trivial_engine
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.processes import (
    BenchError,
    OnStep,
    answers,
    free_port,
    get,
    running,
    wait_until,
)
from inferway_bench.routers import Counters, EngineAddress
from inferway_bench.rows import Column, Findings, Row, Table
from inferway_bench.templates import JsonTemplates
from inferway_sim.prepare import prepare_smollm2

_GAP_SECONDS = 0.004  # between two events: far enough that each is a piece of its own
CHUNK = "a streamed chunk"

Figures = Mapping[str, list[float]]  # "cpu_us" and "messages" of a request, by repeat


class EppPlan(msgspec.Struct, frozen=True):
    """The durations and repeats of the load on the picker."""

    connections: Annotated[
        int,
        flag(
            "Send this number of requests at a time. With 1, the picker cannot take several "
            "messages at once.",
            ge=1,
        ),
    ] = 8
    repeats: int = 5
    seconds: int = 4
    idle_seconds: float = 6.0
    events: int = 50  # tokens of a stream


@dataclass(frozen=True, slots=True)
class _Picker:
    """A picker that runs, and where clients reach it through Envoy."""

    url: str
    pid: int
    admin_port: int
    label: str = "inferway epp"

    def counters(self) -> Counters:
        """Return the messages that Envoy has sent it."""
        stat = "http.picker.ext_proc.stream_msgs_sent"
        url = f"http://127.0.0.1:{self.admin_port}/stats?format=json&filter=^{stat}$"
        found = msgspec.json.decode(get(url))["stats"]
        return {"messages": float(sum(each.get("value", 0) for each in found))}


def measure(plan: EppPlan, on_step: OnStep) -> Findings:
    """Measure the picker. Raises BenchError when something cannot be started, or fails a
    request."""
    binary, model = find_envoy(), str(prepare_smollm2())
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"/(\d+\.\d+\.\d+)/", said)
    short = conversations.short_chat(model)
    cases = {
        "a chat of two messages": short,
        "a chat of 30 turns": conversations.chat_of_8k_tokens(model),
        f"the first, streamed in {plan.events} events": conversations.short_chat(
            model, stream=True
        ),
    }
    numbers, found = iter(range(1, 10**9, 10**6)), []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="inferway-epp-")))
        on_step("starting engines, the picker and Envoy")
        engines = [
            stack.enter_context(trivial_engine(model, directory / f"engine-{i}")) for i in range(2)
        ]
        set_pace(engines, plan.events, _GAP_SECONDS)
        picker = stack.enter_context(_picker(binary, engines, directory, short[0].body(0)))
        on_step("what it takes without requests")
        before = cpu_seconds(picker.pid)
        time.sleep(plan.idle_seconds)
        idle = (cpu_seconds(picker.pid) - before) / plan.idle_seconds
        for name, templates in cases.items():
            [repeats] = in_turns(
                [picker], Load(templates, plan.connections), name, plan.seconds, plan.repeats,
                numbers, _Picker.counters, on_step,
            )  # fmt: skip
            cpu_us = [
                (one.cpu_seconds * 1e6 - idle * one.result.microseconds) / one.result.requests
                for one in repeats
            ]
            messages = [one.counted["messages"] / one.result.requests for one in repeats]
            found.append({"cpu_us": cpu_us, "messages": messages})
    about = (
        f"{f'Envoy {version[1]}' if version else said.strip()}, one worker; {plan.connections} "
        f"connections, {plan.repeats} repeats of {plan.seconds} s. Without requests, the picker "
        f"takes {idle * 1e3:.1f} ms of CPU time a second to read the load of two engines; this "
        "idle time is subtracted from the figures."
    )
    sizes = [len(templates[0].body(0)) for templates in cases.values()]
    return Findings(rows=list(rows_of(list(cases), sizes, found)), about=[about])


def rows_of(names: Sequence[str], sizes: Sequence[int], found: Sequence[Figures]) -> Iterator[Row]:
    """Yield a row for each kind of request, and one for a streamed chunk: the difference in CPU
    time of the first and the last kind by that in messages."""
    for name, size, figures in zip(names, sizes, found, strict=True):
        on_a_core = 1e6 / median(figures["cpu_us"])
        yield Row(
            "pick", {"request": name}, {"body, bytes": size, **figures, "on_a_core": on_a_core}
        )
    plain, stream = found[0], found[-1]
    more = median(stream["messages"]) - median(plain["messages"])
    pairs = zip(plain["cpu_us"], stream["cpu_us"], strict=True)
    yield Row("pick", {"request": CHUNK}, {"cpu_us": [(b - a) / more for a, b in pairs]})


def find_envoy() -> Path:
    """Return Envoy's path, in PATH or where scripts/install_envoy.sh unpacks it. Raises BenchError
    with the cure."""
    if found := shutil.which("envoy"):
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inferway"
    unpacked = sorted(cache.glob("envoy-*/envoy"))
    if not unpacked:
        raise BenchError("envoy: not found in PATH; fix: scripts/install_envoy.sh")
    return unpacked[-1]


def configuration(port: int, picker_port: int, admin_port: int) -> bytes:
    """Return Envoy's configuration: a listener on a port for clients, whose filter asks the picker
    on another one, before the engines. All ports are on the loopback."""
    envoy = JsonTemplates("envoy.json")
    listeners = [envoy.fill("listener", name="picker", port=port)]
    clusters = [envoy.fill("engines"), envoy.fill("picker", name="picker", port=picker_port)]
    whole = envoy.fill("bootstrap", admin_port=admin_port, listeners=listeners, clusters=clusters)
    return msgspec.json.encode(whole)


@contextmanager
def _picker(
    binary: Path, engines: Sequence[EngineAddress], directory: Path, body: bytes
) -> Iterator[_Picker]:
    """Envoy and the picker, which answer a chat."""
    picked: set[int] = set()
    while len(picked) < 3:
        picked.add(free_port())  # it may be told twice
    port, picker_port, admin = picked
    command = [str(Path(sys.executable).with_name("inferway")), "epp"]
    for engine in engines:
        command += ["--engine", engine.url]
    command += ["--host", "127.0.0.1", "--grpc-port", str(picker_port), "--secure-serving=false"]
    command += ["--grpc-health-port", "0", "--metrics-port", "0", "--access-log", "none"]
    config, log, envoy_log = (directory / name for name in ("envoy.json", "picker", "envoy"))
    config.write_bytes(configuration(port, picker_port, admin))
    proxy = [str(binary), "-c", str(config), "--concurrency", "1", "--disable-hot-restart"]
    url = f"http://127.0.0.1:{port}"
    with running(command, log) as process:
        wait_until(lambda: b"listening on" in log.read_bytes(), "the picker", process, log)
        with running([*proxy, "--log-level", "warning"], envoy_log) as envoy:
            wait_until(lambda: answers(url + CHATS, body), "Envoy", envoy, envoy_log)
            yield _Picker(url, process.pid, admin)


_US = "{:,.0f}"
EPP = Benchmark(
    "epp",
    "Measure the endpoint picker behind a real Envoy: the CPU time of a pick and of a streamed "
    "chunk. It needs Envoy in PATH or from scripts/install_envoy.sh, and the program wrk.",
    EppPlan,
    measure,
    [
        Table(
            "pick",
            "CPU time of the picker for a request in µs, median (lowest to highest of the repeats)",
            ["request"],
            [
                Column("body, bytes", form=_US),
                Column("cpu_us", "CPU, µs", _US, "range"),
                Column("on_a_core", "requests/s on one core", _US),
            ],
        ),
    ],
    quick={"repeats": 2, "seconds": 2, "idle_seconds": 2.0},
    question="how much CPU time an endpoint pick and a streamed chunk take behind a real Envoy",
    takes="3 minutes",
)
epp = EPP.command()
