"""A real vLLM engine on the CPU: a process group of its own, with its log in a file."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from tests.engines import client
from tests.engines.preloaded import ForkedProcess, Preloaded

from inferway_bench.machine import CPUINFO, vllm_dtype

INSIDE = Path(__file__).parent / "inside"  # modules that engines import

MODEL = "smollm2"
BLOCK_SIZE = 32  # tokens; vLLM's CPU kernels are made for multiples of 32
MAX_MODEL_LEN = 4096  # tokens, prompt and answer together

_FREED = re.compile(r" - leaked |nanobind: | - \.\.\. skipped remainder")

START_SECONDS = 240  # 35 on two idle cores
EXIT_SECONDS = 30
REPORT_SECONDS = 10

# Requests may bring their own chat template, so that tools and documents show in the prompt
# (SmolLM2's own template leaves them out).
FLAGS = (
    "--enforce-eager --enable-prompt-tokens-details --trust-request-chat-template "
    "--enable-auto-tool-choice --tool-call-parser hermes --host 127.0.0.1"
)

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB: 46,592 tokens of SmolLM2, half as many in float32
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
}


@dataclass(frozen=True)
class Ports:
    http: int
    events: int
    replay: int
    # Among vLLM's own processes. vLLM takes any free one and binds it seconds later, when another
    # engine that starts, or a connection of ours, may have it.
    inner: int


class RealEngine:
    """One engine. It keeps its ports, and so its name, when it is started again.

    `alone`: start the command itself, as for our plugin, which each process of an engine loads when
    it starts. Other engines are forked from a Python that has imported vLLM.
    """

    def __init__(
        self,
        vllm: Path,
        model_dir: Path,
        log: Path,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        *,
        alone: bool = False,
    ) -> None:
        self.ports = Ports(*free_ports(4))
        self.log = log
        self._vllm = vllm
        self._arguments = ["serve", str(model_dir), *FLAGS.split(), *self._own_flags(), *flags]
        self._alone = alone
        path = [environment.get("PYTHONPATH"), str(INSIDE), os.environ.get("PYTHONPATH")]
        python_path = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        inner = {"VLLM_PORT": str(self.ports.inner)}
        self._environment = {**os.environ, **ENVIRONMENT, **environment, **python_path, **inner}
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.ports.http}"

    @property
    def url(self) -> str:
        return f"http://{self.name}"

    def _own_flags(self) -> list[str]:
        kv_events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.ports.events}",
            "replay_endpoint": f"tcp://*:{self.ports.replay}",
            "topic": f"kv@{self.name}@{MODEL}",
        }
        flags = {
            "--port": self.ports.http,
            "--served-model-name": MODEL,
            "--block-size": BLOCK_SIZE,
            "--max-model-len": MAX_MODEL_LEN,
            "--kv-events-config": json.dumps(kv_events),
            "--dtype": vllm_dtype(CPUINFO.read_text()),
        }
        return [str(word) for pair in flags.items() for word in pair]

    def start(self, *flags: str) -> None:
        """With more `flags`, this time. Returns at once; `wait_until_ready` waits."""
        arguments = [*self._arguments, *flags]
        if not self._alone:
            parent = preloaded(self._vllm.with_name("python"))
            self._process = parent.start(arguments, self._environment, self.log)
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._vllm), *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def session(self) -> int:
        """Of all of its processes; the first of them is the HTTP server."""
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Not before it was started."""
        return self._process is not None and self._process.poll() is not None

    def answers(self) -> bool:
        return client.answers(f"{self.url}/health")

    def kill(self) -> None:
        """SIGKILL to every process of the engine, as the kernel does when memory is short."""
        if self._process is None:
            return
        for pid in processes_of(session=self._process.pid):
            os.kill(pid, signal.SIGKILL)
        self._process.wait(EXIT_SECONDS)

    def kill_core(self) -> None:
        """SIGKILL to the process that computes; the HTTP server lives on for a moment."""
        for pid in self.core():
            os.kill(pid, signal.SIGKILL)

    @contextmanager
    def core_stopped(self) -> Iterator[None]:
        """The HTTP server takes requests, and nothing is computed. It may be killed meanwhile."""
        pids = self.core()
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def core(self) -> list[int]:
        """Ids of what computes: the scheduler's process and its workers'."""
        assert self._process is not None
        return [
            pid
            for pid in processes_of(session=self._process.pid)
            if Path(f"/proc/{pid}/comm").read_text().startswith(("VLLM::EngineCor", "VLLM::Worker"))
        ]

    def niceness_of_helpers(self) -> list[int]:
        """Of the child processes that our plugin keeps for work nobody vouches for. (Those that
        step grammars do not give way: the engine waits for them.)"""
        assert self._process is not None
        parents = set(processes_of(session=self._process.pid))
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
                command = (stat.parent / "cmdline").read_bytes()
            except OSError:  # it ended while we looked
                continue
            ours = b"inferway_structured.sandbox.child" in command and b"stepper" not in command
            if ours and int(fields[1]) in parents:
                found.append(int(fields[16]))
        return found

    def log_tail(self, num_lines: int = 60) -> str:
        return "\n".join([f"--- {self.log}", *last_lines(self.log, num_lines)])


def last_lines(log: Path, number: int) -> list[str]:
    """Of an engine that has ended, without those in which nanobind lists what was not freed."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line for line in lines if not _FREED.match(line)][-number:]


@cache
def preloaded(python: Path) -> Preloaded:
    """The one of this run, for that Python."""
    return Preloaded(python, {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(INSIDE)})


def wait_until_ready(engines: Sequence[RealEngine], report: Callable[[str], None]) -> None:
    """All engines answer /health. Raises RuntimeError, with logs, if one ends or is late."""
    started = time.monotonic()
    last_report = 0.0
    waiting = list(engines)
    while waiting := [engine for engine in waiting if not engine.answers()]:
        seconds = time.monotonic() - started
        for engine in waiting:
            if engine.has_ended or seconds > START_SECONDS:
                what = "ended" if engine.has_ended else "is not ready"
                raise RuntimeError(
                    f"{engine.name} {what} after {seconds:.0f} s\n{engine.log_tail()}"
                )
        if seconds - last_report >= REPORT_SECONDS:
            last_report = seconds
            report(f"{seconds:3.0f} s, waiting for " + ", ".join(e.name for e in waiting))
        time.sleep(0.5)
    report(f"{time.monotonic() - started:3.0f} s, ready")


def processes_of(session: int) -> Iterator[int]:
    """All processes of a session: vLLM's server, engine core and workers are one."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if int(fields[3]) == session:
            yield int(stat.parent.name)


_given: set[int] = set()


def free_ports(num: int) -> list[int]:
    """Ports nobody listens on, each of them once. Below the ephemeral range, from which the kernel
    takes ports in the half minute before the engine binds these."""
    found: list[int] = []
    while len(found) < num:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            found.append(port)
    return found
