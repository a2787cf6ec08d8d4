"""What both systems' workers measure with. Standard library only: the peer has its own venv."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

_In = TypeVar("_In")


def stay_on_one_core() -> None:
    """The last of those we may use."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def times_us(step: Callable[[_In], object], inputs: Sequence[_In]) -> list[float]:
    """Of each call."""
    times = []
    for value in inputs:
        start = time.perf_counter_ns()
        step(value)
        times.append((time.perf_counter_ns() - start) / 1000)
    return times


def typical_us(step: Callable[[_In], object], inputs: Sequence[_In], repeats: int) -> float:
    """The mean over inputs of each one's median."""
    rounds = [times_us(step, inputs) for _ in range(repeats)]
    return sum(median(times) for times in zip(*rounds, strict=True)) / len(inputs)


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
