"""Jobs for a helper process: what a test imports here, the child imports too."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import time

_KEPT: list[bytearray] = []
_PREPARED: list[bytes] = []


def echo(argument: bytearray) -> bytes:
    return bytes(argument)


def prepare(argument: bytes) -> None:
    """Reads a file, which a job could not."""
    with open("/proc/self/comm", "rb") as file:
        _PREPARED.append(argument + b" " + file.read()[:6])


def prepare_badly(argument: bytes) -> None:
    raise ValueError(argument.decode())


def prepared(_: bytearray) -> bytes:
    return b"|".join(_PREPARED)


def niceness(_: bytearray) -> bytes:
    return str(os.nice(0)).encode()


def pid(_: bytearray) -> bytes:
    return str(os.getpid()).encode()


def echo_later(argument: bytearray) -> bytes:
    time.sleep(0.3)
    return bytes(argument)


def sleep(_: bytearray) -> bytes:
    time.sleep(600)
    return b""


def spin(_: bytearray) -> bytes:
    while True:
        pass


def leave_cpu_time(argument: bytearray) -> bytes:
    """As if it had computed until so many seconds of its limit are left. To compute that long
    would not do: the kernel counts whole ticks, and on a busy machine some that were not its."""
    signal.setitimer(signal.ITIMER_PROF, float(argument))
    return b""


def allocate(argument: bytearray) -> bytes:
    """So many MiB, and gives them back."""
    return str(len(bytearray(int(argument) << 20))).encode()


def keep(argument: bytearray) -> bytes:
    """So many MiB, and keeps them."""
    _KEPT.append(bytearray(int(argument) << 20))
    return b""


def kept(_: bytearray) -> bytes:
    """How many MiB."""
    return str(sum(map(len, _KEPT)) >> 20).encode()


def long(argument: bytearray) -> bytes:
    """So many MiB."""
    return bytes(int(argument) << 20)


def fail(argument: bytearray) -> bytes:
    raise ValueError(argument.decode())


def leave(argument: bytearray) -> bytes:
    sys.exit(int(argument))


def crash(_: bytearray) -> bytes:
    os.kill(os.getpid(), signal.SIGSEGV)
    return b""


def open_file(argument: bytearray) -> bytes:
    with open(argument.decode(), "rb") as file:
        return file.read()


def connect(_: bytearray) -> bytes:
    with socket.socket() as made:
        return str(made.fileno()).encode()


def fork(_: bytearray) -> bytes:
    """The pid of a process that sleeps."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
    return str(child).encode()


def environment(_: bytearray) -> bytes:
    return json.dumps(dict(os.environ)).encode()


def open_fds(_: bytearray) -> bytes:
    found = []
    for fd in range(256):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.append(fd)
    return json.dumps(found).encode()


def modules(_: bytearray) -> bytes:
    return json.dumps(sorted(sys.modules)).encode()


def fork_no_more(_: bytearray) -> bytes:
    """As where a kernel or a container allows no more processes."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    os.fork = fork
    return b""
