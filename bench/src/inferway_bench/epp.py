"""`inferway bench epp`: CPU time of the endpoint picker behind a real Envoy, for a request, for a
streamed chunk, and before many engines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec

from inferway_bench import conversations
from inferway_bench.conversations import BodyTemplate, EnginePrompts
from inferway_bench.cpu import cpu_seconds
from inferway_bench.dataplane.testbed import CHATS, Load, in_turns, set_pace, trivial_engines
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.processes import (
    BenchError,
    OnStep,
    answers,
    free_port,
    get,
    request,
    running,
    wait_until,
)
from inferway_bench.routers import BLOCK_SIZE, Counters, EngineAddress
from inferway_bench.rows import Column, Findings, Row, Table
from inferway_bench.templates import JsonTemplates
from inferway_bench.trivial_engine import Pace
from inferway_sim.prepare import prepare_smollm2

_GAP_SECONDS = 0.004  # between two events: far enough that each is a piece of its own
CHUNK = "a streamed chunk"
NEW = "a request a second of 100,000 tokens, all new"
AS_BEFORE = "a request a second, its first 95,000 tokens as before"
STREAMED = "the same, answered in 1,000 streamed chunks (computed)"
SCRAPED = "none, engines at rest, scraped every 50 ms as llm-d does"
IDLE = "none, engines at rest"
BUSY = "none, each engine stores 380 blocks a second and removes as many"
_CHURN = Pace(tokens=38 * BLOCK_SIZE, seconds=0.1)
# Each load, and the cores that llm-d publishes for it.
_LOADS = {NEW: None, AS_BEFORE: None, STREAMED: "0.5 to 1", SCRAPED: "7.5", IDLE: None, BUSY: None}

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
    idle_seconds: float = 8.0
    events: int = 50  # tokens of a stream
    engines: int = 100  # before which long prompts are measured
    sessions: int = 12  # that begin a long prompt, of 8,000 tokens each


@dataclass(slots=True)
class _Picker:
    """A picker that runs before engines, where clients reach it through Envoy, and the cores that
    it takes without requests."""

    url: str
    pid: int
    admin_port: int
    engines: Sequence[EngineAddress]
    plan: EppPlan
    on_step: OnStep
    idle: float = 0.0
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 10**9, 10**6)))
    label: str = "inferway epp"

    def counters(self) -> Counters:
        """Return the messages that Envoy has sent it."""
        stat = "http.picker.ext_proc.stream_msgs_sent"
        url = f"http://127.0.0.1:{self.admin_port}/stats?format=json&filter=^{stat}$"
        found = msgspec.json.decode(get(url))["stats"]
        return {"messages": float(sum(each.get("value", 0) for each in found))}

    def measured_idle(self) -> float:
        """Return the cores that it takes without requests, once what it does ever more seldom has
        come to rest."""
        self.on_step("what it takes without requests")
        time.sleep(self.plan.idle_seconds)
        before = cpu_seconds(self.pid)
        time.sleep(self.plan.idle_seconds)
        return (cpu_seconds(self.pid) - before) / self.plan.idle_seconds

    def load(self, name: str, templates: Sequence[BodyTemplate]) -> Figures:
        """Return the CPU time and the messages of a request, by repeat."""
        plan = self.plan
        [repeats] = in_turns(
            [self], Load(templates, plan.connections), name, plan.seconds, plan.repeats,
            self.numbers, _Picker.counters, self.on_step,
        )  # fmt: skip
        cpu_us = [
            (one.cpu_seconds * 1e6 - self.idle * one.result.microseconds) / one.result.requests
            for one in repeats
        ]
        messages = [one.counted["messages"] / one.result.requests for one in repeats]
        return {"cpu_us": cpu_us, "messages": messages}


def measure(plan: EppPlan, on_step: OnStep) -> Findings:
    """Measure the picker. Raises BenchError when something cannot be started, or fails a
    request."""
    binary, model = find_envoy(), str(prepare_smollm2())
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"/(\d+\.\d+\.\d+)/", said)
    cases = {
        "a chat of two messages": conversations.short_chat(model),
        "a chat of 30 turns": conversations.chat_of_8k_tokens(model),
        f"the first, streamed in {plan.events} events": conversations.short_chat(
            model, stream=True
        ),
    }
    with _picker(model, 2, plan, on_step) as two:
        set_pace(two.engines, plan.events, _GAP_SECONDS)
        found = [two.load(name, templates) for name, templates in cases.items()]
    sizes = [len(templates[0].body(0)) for templates in cases.values()]
    rows = list(rows_of(list(cases), sizes, found))
    with _picker(model, plan.engines, plan, on_step, "--scrape-seconds", "0.05") as asking:
        cores = {SCRAPED: [asking.idle]}
    with _picker(model, plan.engines, plan, on_step) as many:
        cores |= dict(_cores(many, model))
    about = (
        f"{f'Envoy {version[1]}' if version else said.strip()}, one worker; {plan.connections} "
        f"connections, {plan.repeats} repeats of {plan.seconds} s. Without requests, the picker "
        f"takes {two.idle * 1e3:.1f} ms of CPU time a second to read the load of two engines; idle "
        "time is subtracted from the figures of requests."
    )
    return Findings(rows=[*rows, *sizing_rows(cores, rows[-1])], about=[about])


def _cores(picker: _Picker, model: str) -> Iterator[tuple[str, list[float]]]:
    """Yield each load that is measured, and its cores."""
    yield IDLE, [picker.idle]
    beginning, new, as_before = conversations.long_chat(model, picker.plan.sessions)
    yield NEW, [us / 1e6 for us in picker.load(NEW, [new])["cpu_us"]]

    prompts, engine = EnginePrompts(model), picker.engines[0].url
    token_ids = prompts.cached_token_ids(beginning)
    prompts.close()

    def matches() -> bool:
        request(f"{engine}/bench/publish", msgspec.json.encode({"token_ids": token_ids}))
        _, headers = request(picker.url + CHATS, as_before.body(0))
        return int(headers["x-inferway-matched-blocks"]) >= len(token_ids) // BLOCK_SIZE

    wait_until(matches, "no match of what an engine published")
    yield AS_BEFORE, [us / 1e6 for us in picker.load(AS_BEFORE, [as_before])["cpu_us"]]
    for each in picker.engines:
        request(f"{each.url}/bench/churn", msgspec.json.encode(_CHURN))
    yield BUSY, [picker.measured_idle()]


def sizing_rows(cores: Mapping[str, list[float]], chunk: Row) -> Iterator[Row]:
    """Yield a row for each load. A streamed answer takes what its chunks take, and the request."""
    streamed = [each + 1000 * chunk.median("cpu_us") / 1e6 for each in cores[AS_BEFORE]]
    for load, published in _LOADS.items():
        values = streamed if load == STREAMED else cores[load]
        yield Row("sizing", {"load": load}, {"cores": values, "llm-d": published})


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
    ports = {"port": port, "picker_port": picker_port, "admin_port": admin_port}
    return msgspec.json.encode(JsonTemplates("envoy.json").fill("bootstrap", **ports))


@contextmanager
def _picker(
    model: str, num_engines: int, plan: EppPlan, on_step: OnStep, *flags: str
) -> Iterator[_Picker]:
    """Engines, the picker and Envoy, which answer a chat."""
    on_step("starting engines, the picker and Envoy")
    body = conversations.short_chat(model)[0].body(0)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="inferway-epp-")))
        engines = stack.enter_context(trivial_engines(model, directory / "engines", num_engines))
        picked: set[int] = set()
        while len(picked) < 3:
            picked.add(free_port())  # it may be told twice
        port, picker_port, admin = picked
        config, log, envoy_log = (directory / name for name in ("envoy.json", "picker", "envoy"))
        config.write_bytes(configuration(port, picker_port, admin))
        proxy = [str(find_envoy()), "-c", str(config), "--log-level", "warning"]
        proxy += ["--concurrency", "1", "--disable-hot-restart"]
        command = [str(Path(sys.executable).with_name("inferway")), "epp", "--host", "127.0.0.1"]
        command += ["--grpc-port", str(picker_port), "--secure-serving=false", *flags]
        command += ["--grpc-health-port", "0", "--metrics-port", "0", "--access-log", "none"]
        for engine in engines:
            command += ["--engine", engine.url]
        # Envoy first: the picker opens connections, each of which may take a port that was free.
        envoy = stack.enter_context(running(proxy, envoy_log))
        process = stack.enter_context(running(command, log))
        wait_until(lambda: b"listening on" in log.read_bytes(), "the picker", process, log)
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(url + CHATS, body), "Envoy", envoy, envoy_log)
        picker = _Picker(url, process.pid, admin, engines, plan, on_step)
        picker.idle = picker.measured_idle()
        yield picker


_US = "{:,.0f}"
EPP = Benchmark(
    "epp",
    "Measure the endpoint picker behind a real Envoy: the CPU time of a pick and of a streamed "
    "chunk, and the cores for long prompts and 100 engines. It needs Envoy in PATH or from "
    "scripts/install_envoy.sh, and the program wrk.",
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
        Table(
            "sizing",
            "Cores of the picker before {engines} engines (lowest to highest of the repeats), "
            "beside those that llm-d publishes for its own",
            ["load"],
            [Column("cores", "Inferway", "{:,.3f}", "range"), Column("llm-d")],
        ),
    ],
    quick={"repeats": 2, "seconds": 2, "idle_seconds": 2.0},
    question="how much CPU time an endpoint pick and a streamed chunk take behind a real Envoy, "
    "and how many cores long prompts and 100 engines take",
    takes="5 minutes",
)
epp = EPP.command()
