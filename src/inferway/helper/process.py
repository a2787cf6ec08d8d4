"""The parent's side of one child process: start it, hand it a job, kill it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferway.errors import HelperError, JobFailedError, JobKilledError
from inferway.helper.wire import ANSWER, JOB, Outcome

# To import what a child needs: 0.1 s on an idle machine.
START_SECONDS = 60.0

# An error's type has no more; a child that has been taken over might say anything.
MAX_KIND_CHARS = 100

_SOURCES = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one job may use."""

    memory_bytes: int = 256 << 20  # on top of what the child needs before its first job
    cpu_seconds: float = 2
    wall_seconds: float = 5.0
    result_bytes: int = 32 << 20
    niceness: int = 10  # whoever sends such work waits a little longer before others do


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a child does once, after its imports and before its limits hold."""

    function: str  # "package.module:name", bytes -> anything
    fd: int  # a file whose whole content is the argument; stays ours


class HelperProcess:
    """One child and the socket to it. One thread uses it; any thread may `kill` it."""

    def __init__(
        self, modules: Sequence[str], limits: Limits, preparation: Preparation | None = None
    ) -> None:
        self._limits = limits
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._child = _start(theirs.fileno(), modules, limits, preparation)
            except OSError as e:
                self._socket.close()
                raise HelperError(f"the helper process does not start: {e.strerror}") from e
        self._ready = False
        self.usable = True  # for another job

    @property
    def pid(self) -> int:
        return self._child.pid

    def do(self, function: str, argument: bytes) -> bytes:
        """The job's result. Raises JobKilledError, JobFailedError or HelperError; `usable` says
        whether the child has survived it."""
        self.usable = False
        if not self._ready:
            self._wait_until_ready()
        deadline = time.monotonic() + self._limits.wall_seconds
        try:
            self._send(JOB.pack(len(function), len(argument)) + function.encode(), deadline)
            self._send(argument, deadline)
            outcome, worn_out, rest = self._receive(deadline)
        except TimeoutError:
            seconds = self._limits.wall_seconds
            raise JobKilledError("wall", f"took more than {seconds:g} s") from None
        except OSError:
            raise self._death() from None
        if outcome == Outcome.OUT_OF_MEMORY:
            mebibytes = self._limits.memory_bytes >> 20
            raise JobKilledError("memory", f"took more memory than {mebibytes} MiB")
        if outcome == Outcome.TOO_LONG:
            mebibytes = self._limits.result_bytes >> 20
            raise JobKilledError("result", f"made more than {mebibytes} MiB")
        self.usable = not worn_out
        if outcome == Outcome.DONE:
            return rest
        raise JobFailedError(rest[:MAX_KIND_CHARS].decode(errors="replace"))

    def kill(self) -> None:
        """Ends the child, and what it may have started; whoever waits for an answer is told."""
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._child.wait()
        self._socket.close()

    def _wait_until_ready(self) -> None:
        try:
            outcome, _, why = self._receive(time.monotonic() + START_SECONDS)
        except OSError as e:
            raise HelperError(f"the helper process does not start: {type(e).__name__}") from e
        if outcome != Outcome.READY:
            raise HelperError(f"the helper process does not start: {why.decode()}")
        self._ready = True

    def _death(self) -> JobKilledError:
        """Why there was no answer."""
        self.kill()  # it may have closed its socket and live on; else this changes nothing
        code = self._child.wait()
        if code in (-signal.SIGPROF, -signal.SIGXCPU):
            seconds = self._limits.cpu_seconds
            return JobKilledError("cpu", f"took more than {seconds:g} s of CPU time")
        return JobKilledError("crash", f"ended its process (status {code})")

    def _send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(data)

    def _receive(self, deadline: float) -> tuple[int, bool, bytes]:
        outcome, worn_out, length = ANSWER.unpack(self._read(ANSWER.size, deadline))
        if length > self._limits.result_bytes:  # the child has said so itself, if it is itself
            return Outcome.TOO_LONG, True, b""
        return outcome, worn_out, bytes(self._read(length, deadline))

    def _read(self, length: int, deadline: float) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while len(view):
            self._socket.settimeout(_left(deadline))
            received = self._socket.recv_into(view)
            if not received:
                raise ConnectionResetError
            view = view[received:]
        return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _start(
    fd: int, modules: Sequence[str], limits: Limits, preparation: Preparation | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _command(fd, modules, limits, preparation),
        pass_fds=[fd] if preparation is None else [fd, preparation.fd],
        env=_environment(),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the terminal is for us alone
    )


def _command(
    fd: int, modules: Sequence[str], limits: Limits, preparation: Preparation | None
) -> list[str]:
    """Neither the environment, nor the user's site, nor the working directory decides what the
    child imports: it gets our own path."""
    path = [str(_SOURCES), *(entry for entry in sys.path if os.path.isabs(entry))]
    prepare = None if preparation is None else (preparation.function, preparation.fd)
    code = (
        f"import sys; sys.path[:] = {path!r}; from inferway.helper.child import main;"
        f" main({fd}, {os.getpid()}, {list(modules)!r}, prepare={prepare!r},"
        f" memory_bytes={limits.memory_bytes}, cpu_seconds={limits.cpu_seconds},"
        f" result_bytes={limits.result_bytes}, niceness={limits.niceness})"
    )
    return [sys.executable, "-I", "-S", "-c", code]


def _environment() -> dict[str, str]:
    """No secrets: only what the dynamic linker and the clock go by."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "TZ") if name in os.environ}
