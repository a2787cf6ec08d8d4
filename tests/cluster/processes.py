"""A gateway's processes as the kernel has them, and the moments in their lives at which one is
killed."""

from __future__ import annotations

import math
import os
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import pytest
from tests.cluster.serving import CHAT, MODEL, WORKERS, Serving, simulated, worker_of
from tests.engines import client
from tests.engines.program import Program
from tests.engines.waiting import wait_until
from tests.leftovers import children

from inferway_sim.engine import SimulatedEngine

_MARK = "INFERWAY_TEST_OF"  # in the environment of hubs, which workers inherit
_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE_SECONDS = 3.0


@dataclass
class Place:
    """Where hubs are started, one after the other: the same port, the same engines."""

    directory: Path
    port: int
    words: Sequence[str]
    engines: Sequence[SimulatedEngine]
    mark: str
    temporary: Path  # the directory for temporary files
    hubs: list[Program] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """The temporary files that gateways have left."""
        return [each.name for each in self.temporary.iterdir()]

    def begin(self) -> Serving:
        """Start a hub, which need not listen yet."""
        log = self.directory / f"hub{len(self.hubs)}.log"
        hub = Program(self.words, log, port=self.port, alone=True)
        hub.begin()
        self.hubs.append(hub)
        return Serving(hub, list(self.engines))

    def start(self) -> Serving:
        """Start a hub, and wait until it listens."""
        begun = self.begin()
        begun.gateway.listens()
        return begun

    def processes(self) -> set[int]:
        """All processes of all hubs that were started here, and are still there."""
        mark = self.mark.encode()
        found = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        return {pid for pid in found if mark in _read(f"/proc/{pid}/environ")}

    def kill_hub(self, begun: Serving) -> None:
        """Kill the hub, and wait until all has ended that was started by it, or for it. The memory
        that they share goes with the last of them."""
        # helpers are not marked: they have no environment
        started = descendants(begun.gateway.pid)
        kill(begun.gateway.pid)
        wait_until(
            lambda: not self.processes() and not any(map(is_there, started)),
            "no process is left",
            lambda: [_read(f"/proc/{pid}/cmdline") for pid in self.processes()],
        )

    def end(self) -> None:
        for pid in self.processes():
            kill(pid)
        for hub in self.hubs:
            hub.stop()


@contextmanager
def place(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    *flags: str,
    engine_flags: Sequence[str] = (),
) -> Iterator[Place]:
    """A place with one engine. `flags`: of the gateway."""
    mark = secrets.token_hex(8)
    with ExitStack() as stack:
        engine = stack.enter_context(simulated(*engine_flags))
        # a Unix socket's path has 107 characters at most
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="hub-"))
        monkeypatch.setenv("TMPDIR", temporary)
        monkeypatch.setenv(_MARK, mark)
        port = stack.enter_context(_taken_port())
        words = ["serve", engine.url, "--workers", str(WORKERS), *flags]
        made = Place(directory, port, words, [engine], mark, Path(temporary))
        stack.callback(made.end)
        yield made


@contextmanager
def _taken_port() -> Iterator[int]:
    """A port that nobody but gateways with workers gets, whose processes share it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """It does nothing meanwhile, as if it were slow. It may be killed then."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _state(pid) == "T", "it is stopped")
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_there(pid: int) -> bool:
    """Whether anything of the process is left, which is a zombie as soon as its first thread has
    ended: what it listens on is closed with the last one."""
    return _state(pid) not in ("", "Z") or len(_threads(pid)) > 1


def descendants(pid: int) -> set[int]:
    """The process's children, theirs, and so on."""
    found: set[int] = set()
    for child in children(pid):
        found |= {child, *descendants(child)}
    return found


def first_worker(begun: Serving) -> int:
    """The first worker's process, as soon as there is one."""
    return wait_until(begun.workers, "a worker begins", begun.gateway.log_text)[0]


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has taken; endless, if it has ended."""
    fields = _stat(pid)
    if not fields or fields[0] == "Z":
        return math.inf
    return (int(fields[11]) + int(fields[12])) / _TICKS


def wait_for_cpu(pid: int, seconds: float) -> None:
    """Wait until the process has taken so many seconds of CPU time, which is a moment of its life
    however busy the machine is; or has ended; or has had nothing to do for a while, for on a fast
    machine it has started by then."""
    last, since = cpu_seconds(pid), time.monotonic()

    def has_come_so_far() -> bool:
        nonlocal last, since
        taken, now = cpu_seconds(pid), time.monotonic()
        if taken > last:
            last, since = taken, now
        return taken >= seconds or now - since > _IDLE_SECONDS

    wait_until(has_come_so_far, "it has done that much")


def streams_of_both(gateway: Serving, tokens: int) -> list[HTTPResponse]:
    """Answers under way, one of each worker."""
    found: dict[str, HTTPResponse] = {}
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }

    def both() -> bool:
        stream = client.open_stream(f"{gateway.url}{CHAT}", body)
        worker = worker_of(client.Answer(200, stream.headers, b""))
        if worker in found:
            stream.close()
        else:
            assert stream.readline().startswith(b"data:")
            found[worker] = stream
        return len(found) == WORKERS

    wait_until(both, "both workers answer", gateway.gateway.log_text)
    return list(found.values())


def is_whole(stream: HTTPResponse) -> bool:
    """Whether the answer comes to its end."""
    try:
        with stream:
            return stream.read().rstrip().endswith(b"data: [DONE]")
    except (OSError, HTTPException):
        return False


def _state(pid: int) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended
        return []


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none if it is not there."""
    return _read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended
        return b""
