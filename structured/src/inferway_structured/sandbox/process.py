"""The parent's side of one child process: start it, hand it a job, kill it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferway_structured.errors import JobFailedError, JobKilledError, SandboxError
from inferway_structured.sandbox.child import ANSWER, COPY, JOB, Outcome

# To import what a child needs: 0.1 s on an idle machine.
START_SECONDS = 60.0

# An error's type has no more; a child that has been taken over might say anything.
MAX_KIND_CHARS = 100

_SOURCES = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of time and memory for one job."""

    memory_bytes: int = 256 << 20  # on top of what the child needs before its first job
    cpu_seconds: float = 2
    wall_seconds: float = 5.0
    result_bytes: int = 32 << 20
    niceness: int = 10  # clients with such work wait a little longer before others do


@dataclass(frozen=True, slots=True)
class Preparation:
    """The work that a child does once, after its imports and before its limits hold."""

    function: str  # "package.module:name", bytes -> anything
    fd: int  # a file whose whole content is the argument; stays ours


class Conversation:
    """The parent's side of the socket to one child. One thread at a time uses it."""

    def __init__(self, parents: socket.socket, limits: Limits) -> None:
        self._socket = parents
        self._limits = limits
        self._deadline = 0.0
        self.is_ready = False  # the child has said so
        self.usable = True  # for another job

    def do(self, function: str, argument: bytes) -> bytes:
        """Return the job's result. Raises JobKilledError, JobFailedError or SandboxError; `usable`
        says whether the child has survived it."""
        self.ask(function, argument)
        return self._answer(self._deadline)

    def ask(self, function: str, argument: bytes) -> None:
        """Hand the child a job, and do not wait for its answer. Raises as `do`."""
        self.usable = False
        self.wait_until_ready()
        self._deadline = time.monotonic() + self._limits.wall_seconds
        head = JOB.pack(len(function), len(argument)) + function.encode()
        try:
            self._send(head, self._deadline)
            self._send(argument, self._deadline)
        except OSError as e:
            raise self._lost(e) from None

    def answer(self) -> bytes:
        """Return the result of the job that was handed over. Waits for the child's wall time from
        now on. Raises as `do`."""
        return self._answer(time.monotonic() + self._limits.wall_seconds)

    def _answer(self, deadline: float) -> bytes:
        try:
            outcome, worn_out, rest = self._receive(deadline)
        except OSError as e:
            raise self._lost(e) from None
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

    def copy(self, limits: Limits, copied: bool = False) -> Conversation:
        """Return a conversation with a copy of the child, which was started to be `copied`, as the
        copy may be, too. The copy ends with the child, or when its conversation is closed, or held
        by nobody: at the end of its job. Raises SandboxError; `usable` says whether the child can
        be asked again."""
        self.wait_until_ready()
        ours, theirs = socket.socketpair()
        wanted = (limits.memory_bytes, limits.cpu_seconds, limits.result_bytes, copied)
        try:
            with theirs:
                self._send(JOB.pack(0, COPY.size), time.monotonic() + START_SECONDS)
                socket.send_fds(self._socket, [COPY.pack(*wanted)], [theirs.fileno()])
        except OSError as e:
            ours.close()
            self.usable = False
            raise SandboxError(f"a process is not copied: {type(e).__name__}") from e
        made = Conversation(ours, limits)
        weakref.finalize(made, ours.close)
        try:
            made.wait_until_ready()
        except SandboxError as e:
            ours.close()
            self.usable = not isinstance(e.__cause__, TimeoutError)
            raise SandboxError(f"a process is not copied: {type(e.__cause__).__name__}") from e
        return made

    def wait_until_ready(self) -> None:
        """Wait until the child is prepared and its limits hold. Raises SandboxError."""
        if self.is_ready:
            return
        try:
            outcome, _, why = self._receive(time.monotonic() + START_SECONDS)
        except OSError as e:
            raise SandboxError(f"the helper process does not start: {type(e).__name__}") from e
        if outcome != Outcome.READY:
            raise SandboxError(f"the helper process does not start: {why.decode()}")
        self.is_ready = True

    def close(self) -> None:
        self._socket.close()

    def _lost(self, error: OSError) -> JobKilledError:
        """Return why there was no answer."""
        if isinstance(error, TimeoutError):
            return JobKilledError("wall", f"took more than {self._limits.wall_seconds:g} s")
        return self._death()

    def _death(self) -> JobKilledError:
        return JobKilledError("crash", "ended its process")

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


class SandboxProcess(Conversation):
    """One child process, started by this object. One thread uses it; any thread may `kill` it."""

    def __init__(
        self,
        modules: Sequence[str],
        limits: Limits,
        preparation: Preparation | None = None,
        copied: bool = False,
    ) -> None:
        """It ends with the thread that has started it."""
        ours, theirs = socket.socketpair()
        super().__init__(ours, limits)
        command = _command(theirs.fileno(), modules, limits, preparation, copied)
        fds = [theirs.fileno(), *([] if preparation is None else [preparation.fd])]
        # No secrets: only what the dynamic linker and the clock go by.
        names = os.environ.keys() & {"LD_LIBRARY_PATH", "TZ"}
        environment = {name: os.environ[name] for name in names}
        with theirs:
            try:
                self._child = subprocess.Popen(
                    command,
                    pass_fds=fds,
                    env=environment,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C in the terminal is for us alone
                )
            except OSError as e:
                ours.close()
                raise SandboxError(f"the helper process does not start: {e.strerror}") from e

    @property
    def pid(self) -> int:
        return self._child.pid

    def kill(self) -> None:
        """End the child, and what it may have started; a thread that waits for it learns it."""
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._child.wait()
        super().close()

    def _death(self) -> JobKilledError:
        self.kill()  # it may have closed its socket and live on; else this changes nothing
        code = self._child.wait()
        if code in (-signal.SIGPROF, -signal.SIGXCPU):
            seconds = self._limits.cpu_seconds
            return JobKilledError("cpu", f"took more than {seconds:g} s of CPU time")
        return JobKilledError("crash", f"ended its process (status {code})")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _command(
    fd: int, modules: Sequence[str], limits: Limits, preparation: Preparation | None, copied: bool
) -> list[str]:
    """Neither the environment, nor the user's site, nor the working directory decides what the
    child imports: it gets our own path."""
    path = [str(_SOURCES), *(entry for entry in sys.path if os.path.isabs(entry))]
    prepare = None if preparation is None else (preparation.function, preparation.fd)
    code = (
        f"import sys; sys.path[:] = {path!r}; from inferway_structured.sandbox.child import main;"
        f" main({fd}, {os.getpid()}, {list(modules)!r}, prepare={prepare!r},"
        f" memory_bytes={limits.memory_bytes}, cpu_seconds={limits.cpu_seconds},"
        f" result_bytes={limits.result_bytes}, niceness={limits.niceness}, copied={copied})"
    )
    return [sys.executable, "-I", "-S", "-c", code]
