"""What a test has left behind, found when it ends, so that it fails and not one that comes later.

Garbage with a finalizer (a socket that was not closed, a coroutine that was not awaited) is found
whenever the collector runs; what is alive (an open file, a thread, a child process) takes from the
tests after it. The collector runs after each test, over what that test has made alone: all that was
there before is frozen, which makes a collection cost a millisecond instead of a hundred.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 10  # for what is about to end

# Signals whose handlers belong to the process of the tests.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class There:
    """What there is at one time."""

    files: frozenset[tuple[int, int]]
    threads: frozenset[threading.Thread]
    children: frozenset[int]

    @classmethod
    def now(cls) -> There:
        return cls(_files(), frozenset(threading.enumerate()), _children())


def beside(before: There) -> list[str]:
    """What is there now and was not before, in words. It waits for what is about to end, as the
    threads of libraries do."""
    end = time.monotonic() + SECONDS
    while (found := _beside(before)) and time.monotonic() < end:
        time.sleep(0.005)
    return found


def _beside(before: There) -> list[str]:
    now = There.now()
    files = [f"file {fd}: {_target(fd)}" for fd, _ in sorted(now.files - before.files)]
    threads = [f"thread {each.name}" for each in now.threads - before.threads if each.is_alive()]
    children = [f"process {pid}: {_command(pid)}" for pid in now.children - before.children]
    return [*files, *threads, *children]


@contextmanager
def unraisable() -> Iterator[list[str]]:
    """What finalizers raise, in words."""
    said: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda e: said.append(f"{e.exc_type.__name__}: {e.exc_value} ({e.object})")
    try:
        yield said
    finally:
        sys.unraisablehook = before


def collect(everything: bool) -> list[str]:
    """Collect what the test has left, or all that was left by any. Returns what finalizers
    raised."""
    if everything:
        gc.unfreeze()
    with unraisable() as said:
        gc.collect()
    gc.freeze()
    return said


def handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in SIGNALS}


def restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _files() -> frozenset[tuple[int, int]]:
    """Open files, by number and inode."""
    found = set()
    with suppress(OSError):  # no Linux
        for fd in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # the folder itself
                found.add((fd, os.fstat(fd).st_ino))
    return frozenset(found)


def _children() -> frozenset[int]:
    found: set[int] = set()
    with suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has just ended
                found |= set(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
    return frozenset(found)


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError as e:
        return e.strerror or "unknown"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except OSError as e:
        return e.strerror or "unknown"
