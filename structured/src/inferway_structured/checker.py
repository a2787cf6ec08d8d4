"""Checks off the event loop: once per spec, bounded in number, time and memory.

A verdict that is known is given at once. Else a thread checks what is small and plain; what is
large, or is a grammar, or spells out many repeats goes to a helper process, which ends with the
job that passes its limits: that spec is refused then, and known as refused.

When too many wait, a request gets a 503: none passes unchecked, and none waits without bound.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from threading import Lock
from typing import NamedTuple

from inferway_structured import check_jobs
from inferway_structured.check import DEFAULT, check
from inferway_structured.cost import is_costly
from inferway_structured.errors import (
    ChecksBusyError,
    HelperBusyError,
    HelperError,
    JobFailedError,
    JobKilledError,
    SpecError,
    is_panic,
)
from inferway_structured.helper.helper import Helper
from inferway_structured.helper.process import Limits as HelperLimits
from inferway_structured.limits import SpecLimits
from inferway_structured.report import in_request
from inferway_structured.spec import Asked, Spec, packed

HELPER_LIMITS = HelperLimits(memory_bytes=512 << 20, cpu_seconds=1, wall_seconds=1.9, niceness=19)


_KILLED = {
    "cpu": "takes more processor time than a check may use",
    "memory": "takes more memory than a check may use",
}
_CRASHED = "brings down the library that reads it"


class Fault(NamedTuple):
    """A SpecError, to be raised again."""

    words: str
    place: str
    keyword: str | None


@dataclass(slots=True)
class CheckerStats:
    """Written under the checker's lock; read when metrics are scraped."""

    known: int = 0  # verdicts given at once
    checked: int = 0
    refused: int = 0  # of these
    joined: int = 0  # waited for another request's check of the same spec
    busy: int = 0  # not checked: 503 for those who asked
    killed: int = 0  # checks that passed the helper's limits
    entries: int = 0


def new_helper(limits: HelperLimits = HELPER_LIMITS, max_waiting: int = 64) -> Helper:
    """Starts with its first job. Answers (valid.py) and checks had better have one each: what takes
    long for one kind does not hold up the other."""
    return Helper(
        *check_jobs.MODULES,
        limits=limits,
        max_waiting=max_waiting,
        patience_seconds=5.0,
        keep_spare=False,
    )


class Checker:
    """Any thread and any event loop may use it. Close it: no process outlives it."""

    def __init__(
        self,
        limits: SpecLimits = DEFAULT,
        *,
        max_waiting: int = 64,
        max_entries: int = 16_384,
        helper_limits: HelperLimits = HELPER_LIMITS,
    ) -> None:
        """Loads the libraries now, for tens of milliseconds: later, the event loop would wait."""
        import jsonschema_rs  # noqa: F401
        import llguidance  # noqa: F401

        self.limits = limits
        self.stats = CheckerStats()
        self._max_waiting = max_waiting
        self._max_entries = max_entries  # of at most ~1 kB each: words are cut, specs not kept
        self._lock = Lock()
        self._open: dict[str, Future[Fault | None]] = {}
        self._known: OrderedDict[str, Fault | None] = OrderedDict()
        # One that checks: of two, one would go on where the event loop waits for its turn.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="check")
        # These only wait for the helper: each for its own patience, not for one before it.
        self._waiting = ThreadPoolExecutor(max_waiting, thread_name_prefix="check-wait")
        self.helper = new_helper(helper_limits, max_waiting)

    async def check(self, asked: Asked) -> None:
        """Raises SpecError with `param`, its place in the request, or ChecksBusyError. Who is
        cancelled leaves the check to whoever else waits for it."""
        found = self._look(asked)
        if isinstance(found, Future):
            found = await asyncio.shield(asyncio.wrap_future(found))
        _raise(found, asked)

    def check_now(self, asked: Asked) -> None:
        """As `check`, for who may block."""
        found = self._look(asked)
        _raise(found.result() if isinstance(found, Future) else found, asked)

    def is_known(self, spec: Spec) -> bool:
        """Whether its verdict is given at once."""
        with self._lock:
            return spec.key in self._known

    def close(self) -> None:
        """Ends what runs; what waits is answered with ChecksBusyError."""
        self.helper.close()
        for threads in (self._thread, self._waiting):
            threads.shutdown(wait=True, cancel_futures=True)

    def _look(self, asked: Asked) -> Fault | Future[Fault | None] | None:
        key = asked.spec.key
        with self._lock:
            if key in self._known:
                self.stats.known += 1
                self._known.move_to_end(key)
                return self._known[key]
            if key in self._open:
                self.stats.joined += 1
                return self._open[key]
            if len(self._open) >= self._max_waiting:
                self.stats.busy += 1
                raise ChecksBusyError(
                    f"{len(self._open)} shapes wait to be checked; try again in a moment"
                )
            costly = is_costly(asked.spec)
            judge, threads = (
                (self._judged_apart, self._waiting) if costly else (self._judged, self._thread)
            )
            future = self._open[key] = threads.submit(judge, asked.spec)
        future.add_done_callback(lambda done: self._done(key, done))
        return future

    def _done(self, key: str, done: Future[Fault | None]) -> None:
        with self._lock:
            self._open.pop(key, None)
            if done.cancelled() or done.exception() is not None:
                self.stats.busy += 1
                return
            fault = done.result()
            self.stats.checked += 1
            self.stats.refused += fault is not None
            self._known[key] = fault
            if len(self._known) > self._max_entries:
                self._known.popitem(last=False)
            self.stats.entries = len(self._known)

    def _judged(self, spec: Spec) -> Fault | None:
        try:
            check(spec, self.limits)
        except SpecError as e:
            return _fault(str(e), e.place, e.keyword)
        except BaseException as e:
            if not is_panic(e):
                raise
            return _fault(_CRASHED, "", None)
        return None

    def _judged_apart(self, spec: Spec) -> Fault | None:
        argument = packed(spec, limits=asdict(self.limits))
        try:
            said = self.helper.call(check_jobs.CHECK, argument)
        except JobKilledError as e:
            with self._lock:
                self.stats.killed += 1
            if e.lacked_cpu:
                raise ChecksBusyError(
                    f"the check {e}, for lack of CPU; try again in a moment"
                ) from None
            return _fault(f"{_KILLED.get(e.limit, _CRASHED)}; simplify it", "", None)
        except HelperBusyError as e:
            raise ChecksBusyError(str(e)) from None
        except HelperError as e:
            if isinstance(e, JobFailedError) and "PanicException" in str(e):
                return _fault(_CRASHED, "", None)
            raise ChecksBusyError(f"shapes cannot be checked now: {e}") from None
        return _fault(*json.loads(said)) if said else None


def _fault(words: str, place: str, keyword: str | None) -> Fault:
    """Cut where names are so long that many faults would fill the memory."""
    return Fault(words[:600], place[:600], keyword and keyword[:200])


def _raise(fault: Fault | None, asked: Asked) -> None:
    if fault is not None:
        error = SpecError(fault.words, place=fault.place, keyword=fault.keyword)
        raise in_request(asked, error)
