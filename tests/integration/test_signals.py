"""Signals from when a process listens to them until it has gone: none of them ends it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path

import pytest
from tests.engines.waiting import wait_until
from tests.fork_server import INFERWAY

from inferway.signals import ENDING

SERVE = ("serve", "--port", "0", "--engine")
PICK = (
    *("epp", "--metrics-port", "0", "--grpc-port", "0", "--grpc-health-port", "0"),
    *("--secure-serving=false", "--engine"),
)
SIMULATE = ("simulate", "--port", "0")
WAITING = 10_000  # more than any of them computes in its start


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of an engine that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def listens(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has handlers for SIGINT and SIGTERM, or has ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return process.poll() is not None
    found = re.search(r"^SigCgt:\s+(\w+)$", status, re.MULTILINE)
    if found is None:  # it has ended
        return True
    caught = int(found[1], 16)
    return all(caught >> (number - 1) & 1 for number in ENDING)


def ticks(process: subprocess.Popen[bytes]) -> int:
    """What the process has computed so far, in hundredths of a second."""
    fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])


@contextmanager
def running(command: Sequence[str], stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def flooded(process: subprocess.Popen[bytes], numbers: Sequence[signal.Signals]) -> int:
    """The status of the process, which gets signals for as long as it is there."""
    for number in cycle(numbers):
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.002)
    raise AssertionError


def ended(words: Sequence[str], moment: int, numbers: Sequence[signal.Signals]) -> int:
    """The status of a program that gets signals from when it has computed so many hundredths of a
    second beyond the first moment at which it listens, or waits for something."""
    with running([str(INFERWAY), *words], subprocess.DEVNULL) as process:
        wait_until(lambda: listens(process), "it listens to signals")
        begun = last = ticks(process)
        looks = 0
        while last < begun + moment and looks < 60:  # it waits for something itself
            with suppress(subprocess.TimeoutExpired):
                return process.wait(0.005)
            now = ticks(process)
            looks = looks + 1 if now == last else 0
            last = now
        return flooded(process, numbers)


SERVERS = {
    "serve": (SERVE, [WAITING], [0, 30, 60, 90, 120]),
    "epp": (PICK, [], [0, 30, 60, 90, 120, WAITING]),
    "simulate": (SIMULATE, [], [0, 30, 60, WAITING]),
    "demo": (("demo", "--port", "0"), [], [0, 60, 120, WAITING]),
}


def moments() -> Iterator[object]:
    for name, (words, often, seldom) in SERVERS.items():
        for moment in often:
            yield pytest.param(words, moment, id=f"{name}-{moment}")
        for moment in seldom:
            yield pytest.param(words, moment, id=f"{name}-{moment}", marks=pytest.mark.slow)


@pytest.mark.parametrize(("words", "moment"), list(moments()))
def test_no_signal_ends_a_program_that_listens_before_it_has_ended_itself(
    words: tuple[str, ...], moment: int, silent: str
) -> None:
    more = [silent] if words[-1] == "--engine" else []
    numbers = ENDING if words[0] in ("simulate", "demo") else (*ENDING, signal.SIGHUP)

    assert ended([*words, *more], moment, numbers) in (0, 130, 143)


# Takes a while to go, in the loop's last moments and in the interpreter's.
_LISTENS = """
import asyncio, os, sys, threading, time, uvloop
from inferway.signals import ENDING, listen

def compute(seconds, clock=time.thread_time):  # a default outlives the module
    end = clock() + seconds
    while clock() < end:
        pass

class Last:
    def __del__(self, compute=compute, write=os.write):
        compute(0.1)
        write(1, b"gone")

last = Last()

async def main():
    stop = asyncio.Event()
    listen(asyncio.get_running_loop(), stop.set, *ENDING)
    print("listens", flush=True)
    await stop.wait()
    compute(0.1)

(asyncio if sys.argv[1] == "asyncio" else uvloop).run(main())
compute(0.1)
threading._register_atexit(compute, 0.1)
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_signals_are_listened_to_until_the_process_has_gone(loop: str) -> None:
    command = [sys.executable, "-c", _LISTENS, loop]
    with running(command, subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listens\n"

        assert flooded(process, ENDING) == 0
        assert process.stdout.read() == b"gone"


def test_the_second_interrupt_does_not_stop_what_the_first_cleans_up() -> None:
    script = """
import os, signal, time
from inferway.signals import interrupt_once
interrupt_once()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    print("cleaned up")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"cleaned up\n", b"")
