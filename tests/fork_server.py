"""`inferway` commands, forked from one Python that has imported what they import: each begins in a
twentieth of the CPU time that a new Python takes. What runs then is the command's own code.

As a program (`python -m tests.fork_server`): on standard input an `Order` for each command, on
standard output the id of its process. That process is the child of its subreaper (prctl(2)): of the
test, which gets its status.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn, TypedDict

from tests import leftovers

INFERWAY = Path(sys.executable).with_name("inferway")
MODULES = (
    "inferway.app",
    "inferway.cli.main",
    "inferway.cli.serve",
    "inferway_sim.cli.simulate",
    "inferway_sim.engine",
    "inferway.cluster.hub",
)
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Order(TypedDict):
    """What `become_command` takes."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    output: str


class ForkedProcess:
    """What `subprocess.Popen` has, of a child that another process has forked for this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """None while it runs."""
        if self.returncode is None and self._ends_within(0):
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not self._ends_within(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ends_within(self, seconds: float | None) -> bool:
        return bool(select.select([self._pidfd], [], [], seconds)[0])

    def __del__(self) -> None:
        os.close(self._pidfd)


class ForkServer:
    """The process that forks. It ends with the one that made it."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        leftovers.stays(self._process.pid)
        self._lock = threading.Lock()

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], output: str
    ) -> ForkedProcess:
        """`inferway ARGUMENTS`, which has opened `output`, to append to it what it says."""
        order = Order(
            arguments=arguments,
            environment=dict(environment),
            directory=os.getcwd(),
            output=output,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            print(json.dumps(order), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{__file__} ended with status {self._process.wait()}")
        return ForkedProcess(int(answer))


_lock = threading.Lock()


def fork_server() -> ForkServer:
    """The one of this process."""
    with _lock:  # tests start several commands at once, each in a thread
        return _fork_server()


@cache
def _fork_server() -> ForkServer:
    return ForkServer()


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    answers = os.dup(1)
    for line in sys.stdin:
        order: Order = json.loads(line)
        os.write(answers, b"%d\n" % fork_twice(order))


def fork_twice(order: Order) -> int:
    """Fork a process that forks the command and ends, so that the command is its subreaper's."""
    ours, theirs = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            become_command(**order)
        os.write(theirs, b"%d" % pid)
        os._exit(0)
    os.waitpid(between, 0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as told:
        return int(told.read())  # to its end: the command has opened its output, too


def become_command(
    arguments: Sequence[str], environment: Mapping[str, str], directory: str, output: str
) -> NoReturn:
    """Do what `inferway ARGUMENTS` does."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 1)
    os.dup2(1, 2)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the listing's own
                os.close(int(name))
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    if "PYTHONUNBUFFERED" in environment:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    for number in leftovers.SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[0] = str(INFERWAY.parent)
    sys.argv = [str(INFERWAY), *arguments]
    sys.exit(importlib.import_module("inferway.cli").main())


if __name__ == "__main__":
    main()
