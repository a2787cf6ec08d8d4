"""A plain stream, and what may be done beside it."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.engines.shaped import chat, streamed


def gaps(url: str) -> list[float]:
    """Seconds between the tokens of a plain stream."""
    body = chat("Tell me a long story.", max_tokens=200, ignore_eos=True)
    times = [time.perf_counter() for line in streamed(url, body) if '"content"' in line]
    return [after - before for before, after in itertools.pairwise(times)]


# Of bad requests, and of questions for health: the client must not be what takes the CPU.
PACE_SECONDS = 0.05


@contextmanager
def burner() -> Iterator[None]:
    burning = subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        burning.kill()
        burning.wait()


@contextmanager
def repeatedly(act: Callable[[], None]) -> Iterator[None]:
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(PACE_SECONDS):
            act()

    with ThreadPoolExecutor(1) as pool:
        looping = pool.submit(loop)
        try:
            yield
        finally:
            ended.set()
            looping.result()


def p99(seconds: list[float]) -> float:
    """In milliseconds."""
    return statistics.quantiles(seconds, n=100)[98] * 1000
