"""The child's side: read a job, do it, answer, again. Standard library only.

Imports are done before the first limit, and none is possible after it: with no file left to open
there is nothing that a job could read, write or connect to, whatever it is able to call. The
kernel ends the process with its parent; closing the socket does, too.

A child that is there to be copied keeps the right to open files and to fork, and gives it up in
copies that are not copied themselves: what takes long to prepare is prepared once.

A job is `JOB` (length of the function's name, length of the argument), then both. An answer is
`ANSWER` (an Outcome, whether the child is worn out, length of the rest), then the rest.

A job without a name asks for a copy of the child: its argument is `COPY` (the copy's memory, CPU
time and length of a result, and whether it can be copied itself), with a socket beside it, on which
the copy answers.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38

# Given back when memory has run out, so that this can be said.
_RESERVE_BYTES = 1 << 20

JOB = struct.Struct("!HQ")
ANSWER = struct.Struct("!B?Q")
COPY = struct.Struct("!QdQ?")


class Outcome(IntEnum):
    """The outcome of a job, as its child reports it. Where the child cannot report, its exit status
    tells."""

    READY = 0  # no job yet: everything is imported, limits hold
    NOT_READY = 1  # an import failed; the rest is why
    DONE = 2  # the rest is the result
    RAISED = 3  # the rest is the error's type
    OUT_OF_MEMORY = 4
    TOO_LONG = 5  # the result is longer than allowed


def main(
    fd: int,
    parent: int,
    modules: Sequence[str],
    *,
    prepare: tuple[str, int] | None,
    memory_bytes: int,
    cpu_seconds: float,
    result_bytes: int,
    niceness: int,
    copied: bool,
) -> None:
    """Serve jobs from the socket `fd` until it closes: functions of `modules`, bytes -> bytes.
    `prepare`: a function, called once with what is in the file of that number. `copied`: it may be
    asked for copies of itself."""
    _end_with(parent)
    os.nice(niceness)
    # Ctrl-C is for the parent, which closes the socket when it has answered its clients.
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # whatever the parent does with its own
    if copied:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies are not waited for
    with socket.socket(fileno=fd) as parents:
        child = _Child(parents, cpu_seconds=cpu_seconds, result_bytes=result_bytes)
        try:
            for module in modules:
                importlib.import_module(module)
            if prepare is not None:
                name, file = prepare
                _function(name)(_whole(file))
        except BaseException as e:
            child.answer(Outcome.NOT_READY, f"{type(e).__name__}: {e}".encode())
            return
        child.begin(memory_bytes, copied)
        while child.do_next():
            pass


def _end_with(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:  # it has died before we asked
        os._exit(1)


def _function(name: str) -> Callable[[bytes | bytearray], Any]:
    module, _, function = name.partition(":")
    made: Callable[[bytes | bytearray], Any] = getattr(sys.modules[module], function)
    return made


def _whole(fd: int) -> bytes:
    """Other children read the same open file: its position is not ours to move."""
    parts: list[bytes] = []
    done = 0
    while part := os.pread(fd, 1 << 20, done):
        parts.append(part)
        done += len(part)
    os.close(fd)
    return b"".join(parts)


class _Child:
    def __init__(self, parent: socket.socket, *, cpu_seconds: float, result_bytes: int) -> None:
        self._parent = parent
        self._cpu_seconds = cpu_seconds
        self._result_bytes = result_bytes
        self._worn_out_bytes: float = math.inf
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._reserve: bytearray | None = bytearray(_RESERVE_BYTES)

    def begin(self, memory_bytes: int, copied: bool) -> None:
        """Limit the process, and say that it is ready: so much memory on top of what is in use now;
        no core; and unless it is `copied` no more files, processes, threads."""
        used = self._used_bytes()
        # Memory that earlier jobs have left in pieces must not be missing in later ones.
        self._worn_out_bytes = used + memory_bytes / 4
        limits = {
            resource.RLIMIT_AS: used + memory_bytes,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: 0,
        }
        if not copied:
            limits |= {resource.RLIMIT_NPROC: 0, resource.RLIMIT_NOFILE: 0}
        for limited, most in limits.items():
            _, hard = resource.getrlimit(limited)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(limited, (most, most))
        self.answer(Outcome.READY)

    def do_next(self) -> bool:
        """Do one job from its first byte to its answer. Return False when there are no more."""
        head = self._read(JOB.size)
        if head is None:
            return False
        name_length, argument_length = JOB.unpack(head)
        if not name_length:
            return self._copy()
        name, argument = self._read(name_length), self._read(argument_length)
        if name is None or argument is None:
            return False
        try:
            self._do(str(name, "utf-8"), argument)
        except MemoryError:
            self._reserve = None
            self.answer(Outcome.OUT_OF_MEMORY)
            return False
        except BaseException as e:
            self.answer(Outcome.RAISED, type(e).__name__.encode())
        return True

    def _copy(self) -> bool:
        """Fork. In this process nothing changes; in the copy, there is another parent to serve."""
        limits, sockets, _, _ = socket.recv_fds(self._parent, COPY.size, 1)
        if not sockets:
            return False
        memory_bytes, cpu_seconds, result_bytes, copied = COPY.unpack(limits)
        us = os.getpid()
        with socket.socket(fileno=sockets[0]) as theirs:
            try:
                if os.fork():
                    return True
            except OSError:  # there may be no more processes; the closed socket says so
                return True
            _end_with(us)
            self._parent.close()
            self._parent = socket.socket(fileno=theirs.detach())
        os.close(self._statm)
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._cpu_seconds, self._result_bytes = cpu_seconds, result_bytes
        self.begin(memory_bytes, copied)
        return True

    def _do(self, name: str, argument: bytearray) -> None:
        job = _function(name)
        self._limit_cpu()
        try:
            result: bytes = job(argument)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)  # reading the next job does not count
        if len(result) > self._result_bytes:
            self.answer(Outcome.TOO_LONG)
        else:
            self.answer(Outcome.DONE, result)

    def _limit_cpu(self) -> None:
        """This job's share; SIGPROF ends it, or SIGXCPU in the next whole second if the job has
        found a way around that."""
        signal.setitimer(signal.ITIMER_PROF, self._cpu_seconds)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        most = math.ceil(usage.ru_utime + usage.ru_stime + self._cpu_seconds) + 1
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_CPU, (most, hard))

    def answer(self, outcome: Outcome, rest: bytes = b"") -> None:
        worn_out = self._used_bytes() > self._worn_out_bytes
        self._parent.sendall(ANSWER.pack(outcome, worn_out, len(rest)))
        self._parent.sendall(rest)

    def _read(self, length: int) -> bytearray | None:
        """Return so many bytes from the parent; None when it has closed its end."""
        data = bytearray(length)
        view = memoryview(data)
        while len(view):
            received = self._parent.recv_into(view)
            if not received:
                return None
            view = view[received:]
        return data

    def _used_bytes(self) -> int:
        """Address space in use, which is what RLIMIT_AS counts."""
        pages = int(os.pread(self._statm, 64, 0).split()[0])
        return pages * resource.getpagesize()
