"""What a test has left behind, found when it ends, so that it fails and not one that comes later.

Garbage with a finalizer (a socket that was not closed, a coroutine that was not awaited) is found
whenever the collector runs; a child process that is alive takes from the tests after it. Files and
threads are not looked at: libraries keep some for good. The collector runs after each test, over
what that test has made alone: all that was there before is frozen, which makes a collection cost a
millisecond instead of a hundred.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
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

    children: frozenset[int]

    @classmethod
    def now(cls) -> There:
        return cls(_children())


def beside(before: There) -> list[str]:
    """What is there now and was not before, in words. It waits for what is about to end."""
    end = time.monotonic() + SECONDS
    while (left := _children() - before.children) and time.monotonic() < end:
        time.sleep(0.005)
    return [f"process {pid}: {_command(pid)}" for pid in left]


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


def stays(pid: int) -> None:
    """A child process serves all tests, until the last one has ended."""
    _STAY.add(pid)


_STAY: set[int] = set()


def children(pid: int | str = "self") -> set[int]:
    """The process's children that run: a zombie that was adopted, nobody waits for."""
    found: set[int] = set()
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):  # it has just ended
                text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                found |= set(map(int, text.split()))
    return {pid for pid in found if runs(pid)}


def _children() -> frozenset[int]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()  # none at all, which is most often so
    return frozenset(children() - _STAY)


def runs(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except OSError as e:
        return e.strerror or "unknown"
