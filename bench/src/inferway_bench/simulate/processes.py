"""Simulations side by side, in as many processes as there are cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

from inferway_bench.progress import OnStep

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Processes:
    """So many processes that compute side by side; the only one is this process."""

    def __init__(self, number: int, on_step: OnStep) -> None:
        self._number = number
        self._on_step = on_step

    def map(self, function: Callable[[_In], _Out], given: Sequence[_In], what: str) -> list[_Out]:
        """Return what the function makes of each, in their order."""
        if self._number == 1:
            return [function(one) for one in self._told(given, what, len(given))]
        # Not forked: a progress display has a thread.
        with ProcessPoolExecutor(self._number, get_context("spawn")) as pool:
            futures = [pool.submit(function, one) for one in given]
            try:
                for future in self._told(as_completed(futures), what, len(given)):
                    future.result()
            finally:
                pool.shutdown(cancel_futures=True)  # of what has not begun, after an error
        return [future.result() for future in futures]

    def _told(self, each: Iterable[_In], what: str, total: int) -> Iterator[_In]:
        for number, one in enumerate(each):
            self._on_step(f"{what}: {number:,} of {total:,} simulations", number, total)
            yield one
