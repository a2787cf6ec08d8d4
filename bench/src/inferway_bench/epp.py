"""`inferway bench epp`: CPU time of the endpoint picker for a request and for a streamed chunk,
beside a picker that decides nothing, both behind the same Envoy, loaded in turns."""

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
from inferway_bench.dataplane.testbed import CHATS, Repeat, in_turns, set_pace, trivial_engine
from inferway_bench.dataplane.wrk import Load
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.plotting import Chart, Plot
from inferway_bench.processes import BenchError, answers, free_port, get, running, wait_until
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.routers import Counters, EngineAddress
from inferway_bench.rows import Findings, Goal, Row, Run, Value
from inferway_bench.spread import Interval, median_interval
from inferway_bench.templates import JsonTemplates
from inferway_sim.prepare import prepare_smollm2

PICKERS = ECHO, OURS = "echo", "ours"
MOST_TIMES_A_CHUNK = 1.3  # of echo
_GAP_SECONDS = 0.004  # between two events: far enough that each is a piece of its own

# picker -> "cpu_us" and "messages" of a request, by repeat
Figures = Mapping[str, Mapping[str, list[float]]]


class EppPlan(msgspec.Struct, frozen=True):
    """How long and how often each picker is loaded."""

    connections: Annotated[
        int,
        flag(
            "Send this number of requests at a time. With 1, no picker can take several messages "
            "at once.",
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

    label: str
    url: str
    pid: int
    admin_port: int

    def counters(self) -> Counters:
        """Return the messages that Envoy has sent it."""
        stat = f"http.{self.label}.ext_proc.stream_msgs_sent"
        url = f"http://127.0.0.1:{self.admin_port}/stats?format=json&filter=^{stat}$"
        found = msgspec.json.decode(get(url))["stats"]
        return {"messages": float(sum(each.get("value", 0) for each in found))}


def measure(plan: EppPlan, on_step: OnStep) -> Findings:
    """Measure both pickers. Raises BenchError when something cannot be started, or fails a
    request."""
    binary, model = find_envoy(), str(prepare_smollm2())
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"/(\d+\.\d+\.\d+)/", said)
    envoy = f"Envoy {version[1]}" if version else said.strip()
    short, long = conversations.short_chat(model), conversations.chat_of_8k_tokens(model)
    cases = {
        "a chat of two messages": short,
        "a chat of 30 turns": long,
        f"the first, streamed in {plan.events} events": conversations.short_chat(
            model, stream=True
        ),
    }
    numbers = iter(range(1, 10**9, 10**6))
    found: dict[str, Figures] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="inferway-epp-")))
        on_step("starting engines, pickers and Envoy")
        engines = [
            stack.enter_context(trivial_engine(model, directory / f"engine-{i}")) for i in range(2)
        ]
        set_pace(engines, plan.events, _GAP_SECONDS)
        pickers = stack.enter_context(_pickers(binary, engines, directory, short[0].body(0)))
        on_step("what they take without requests")
        before = [cpu_seconds(picker.pid) for picker in pickers]
        time.sleep(plan.idle_seconds)
        idle = {
            picker.label: (cpu_seconds(picker.pid) - cpu) / plan.idle_seconds
            for picker, cpu in zip(pickers, before, strict=True)
        }
        for name, templates in cases.items():
            measured = in_turns(
                pickers, Load(templates, plan.connections), name, plan.seconds, plan.repeats,
                numbers, _Picker.counters, on_step,
            )  # fmt: skip
            found[name] = {
                picker.label: _figures(repeats, idle[picker.label])
                for picker, repeats in zip(pickers, measured, strict=True)
            }
    picks = (
        row
        for name, figures in found.items()
        for row in pick_rows(name, len(cases[name][0].body(0)), figures)
    )
    plain, _, stream = found.values()
    about = (
        f"{envoy}, one worker; {plan.connections} connections, {plan.repeats} repeats of "
        f"{plan.seconds} s in turns. Without requests, Inferway's picker takes "
        f"{idle[OURS] * 1e3:.1f} ms of CPU time a second to read the load of two engines, and echo "
        f"takes {idle[ECHO] * 1e3:.1f} ms; this idle time is subtracted from the figures."
    )
    return Findings(
        rows=[*picks, *chunk_rows(plain, stream)], about=[about], facts={"envoy": envoy}
    )


def _figures(repeats: Sequence[Repeat], idle: float) -> dict[str, list[float]]:
    """For a request: CPU time without what the picker takes while idle, and messages from Envoy."""
    found: dict[str, list[float]] = {"cpu_us": [], "messages": []}
    for result, cpu_seconds_used, counted in repeats:
        used = cpu_seconds_used - idle * result.microseconds / 1e6
        found["cpu_us"].append(round(used * 1e6 / result.requests, 1))
        found["messages"].append(round(counted["messages"] / result.requests, 2))
    return found


def pick_rows(name: str, body_bytes: int, figures: Figures) -> Iterator[Row]:
    """Yield a row for each picker."""
    for picker in PICKERS:
        cpu = figures[picker]["cpu_us"]
        values: dict[str, Value] = {
            "body, bytes": body_bytes,
            **figures[picker],
            "on_a_core": 1e6 / median(cpu),
        }
        yield Row("pick", {"request": name, "picker": picker}, values, is_ours=picker == OURS)


def chunk_rows(plain: Figures, stream: Figures) -> Iterator[Row]:
    """Yield what a streamed chunk costs each picker: the difference in CPU time of a request and of
    the same, streamed, by that in messages."""
    us, repeats = {}, {}
    for picker in PICKERS:
        one, many = plain[picker], stream[picker]
        more = median(many["messages"]) - median(one["messages"])
        pairs = zip(one["cpu_us"], many["cpu_us"], strict=True)
        repeats[picker] = [(b - a) / more for a, b in pairs]
        us[picker] = (median(many["cpu_us"]) - median(one["cpu_us"])) / more
    # of the medians, with the interval of the repeats' own
    pairs = zip(repeats[OURS], repeats[ECHO], strict=True)
    spread = median_interval([a / b for a, b in pairs])
    times = Interval(us[OURS] / us[ECHO], spread.low, spread.high)
    yield Row("chunk", {"picker": ECHO}, {"us": us[ECHO]}, is_ours=False)
    yield Row("chunk", {"picker": OURS}, {"us": us[OURS], "times": times})


def goals(run: Run) -> Iterator[Goal]:
    """Judge a chunk against echo."""
    chunk = run.find("chunk", picker=OURS)
    if chunk is not None:
        times = chunk.interval("times")
        asked = f"≤ {MOST_TIMES_A_CHUNK:g} × echo"
        is_met = times.value <= MOST_TIMES_A_CHUNK
        yield Goal("CPU a streamed chunk", asked, f"{times.shown()} ×", is_met)


# Envoy and the pickers


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


def configuration(pickers: Mapping[str, tuple[int, int]], admin_port: int) -> bytes:
    """Return Envoy's configuration, a listener for each picker with the same filter before the same
    engines. `pickers`: name -> (port for clients, port of the picker), all on the loopback."""
    envoy = JsonTemplates("envoy.json")
    ports = pickers.items()
    listeners = [envoy.fill("listener", name=name, port=port) for name, (port, _) in ports]
    clusters = [envoy.fill("picker", name=name, port=port) for name, (_, port) in ports]
    clusters.insert(0, envoy.fill("engines"))
    whole = envoy.fill("bootstrap", admin_port=admin_port, listeners=listeners, clusters=clusters)
    return msgspec.json.encode(whole)


@contextmanager
def _pickers(
    binary: Path, engines: Sequence[EngineAddress], directory: Path, body: bytes
) -> Iterator[list[_Picker]]:
    """Envoy and both pickers, of which each answers a chat."""
    picked: set[int] = set()
    while len(picked) < 2 * len(PICKERS) + 1:
        picked.add(free_port())  # it may be told twice
    admin, *left = picked
    ports = {name: (left[i], left[-1 - i]) for i, name in enumerate(PICKERS)}
    with ExitStack() as stack:
        pids = {}
        for name, (_, port) in ports.items():
            log = directory / name
            command = _command(name, port, [engine.url for engine in engines])
            process = stack.enter_context(running(command, log))
            wait_until(lambda log=log: b"listening on" in log.read_bytes(), name, process, log)  # type: ignore[misc]
            pids[name] = process.pid
        config, envoy_log = directory / "envoy.json", directory / "envoy"
        config.write_bytes(configuration(ports, admin))
        proxy = [str(binary), "-c", str(config), "--concurrency", "1", "--disable-hot-restart"]
        envoy = stack.enter_context(running([*proxy, "--log-level", "warning"], envoy_log))
        pickers = []
        for name, (port, _) in ports.items():
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda url=url: answers(url + CHATS, body), name, envoy, envoy_log)  # type: ignore[misc]
            pickers.append(_Picker(name, url, pids[name], admin))
        yield pickers


def _command(name: str, port: int, engines: Sequence[str]) -> list[str]:
    if name == ECHO:
        return [sys.executable, "-m", "inferway_bench.epp_echo", str(port), engines[0]]
    command = [str(Path(sys.executable).with_name("inferway")), "epp"]
    for url in engines:
        command += ["--engine", url]
    command += ["--host", "127.0.0.1", "--grpc-port", str(port), "--secure-serving=false"]
    return [*command, "--grpc-health-port", "0", "--metrics-port", "0", "--access-log", "none"]


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
            ["request", "picker"],
            [
                Column("body, bytes", form=_US),
                Column("cpu_us", "CPU, µs", _US, "range", "lower", "µs"),
                Column("on_a_core", "requests/s on one core", _US),
            ],
        ),
        Table(
            "chunk",
            "CPU time of the picker for a streamed chunk in µs, from the medians",
            ["picker"],
            [
                Column("us", "µs", _US, better="lower", unit="µs"),
                Column("times", "ours / echo", "{:.2f}"),
            ],
        ),
    ],
    chart=Chart(
        "{envoy}",
        [
            Plot(
                "pick", ["cpu_us"], "body, bytes", "picker",
                y_label="CPU of the picker, µs a request", log_x=True, log_y=True,
                where=lambda row: "streamed" not in str(row.keys["request"]),
            )
        ],
    ),
    quick={"repeats": 2, "seconds": 2, "idle_seconds": 2.0},
    goals=lambda run: list(goals(run)),
    question="how much CPU time an endpoint pick and a streamed chunk take behind a real Envoy",
    takes="5 minutes",
)  # fmt: skip
epp = EPP.command()
