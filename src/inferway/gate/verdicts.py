"""What is found of shapes before an engine sees them: once for all who ask, each when it is its
tenant's turn, what is small never behind what is large.

what                                     where                          at a time
reading a large body                     a thread                       1
a small check, its verdict               threads                        2
what is large, or turns out to be        helper processes               2
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from inferway.errors import (
    ChecksBusyError,
    HeavyError,
    HelperError,
    JobKilledError,
    SpecError,
)
from inferway.gate.costs import CompileCosts
from inferway.gate.library import Library, Trial, Verdict
from inferway.gate.once import Once
from inferway.gate.quarantine import Quarantine
from inferway.gate.turns import Asker, Turns
from inferway_structured.spec import Asked, Spec

MAX_VERDICTS = 4096
_READS, _SMALL, _LARGE = 1, 2, 2  # at a time
_MAX_READS_WAITING = 4096  # each takes a few milliseconds; most turn out to ask what is known

_T = TypeVar("_T")


class QuarantinedError(Exception):
    """Refused for a while: `error` says why."""

    def __init__(self, error: SpecError) -> None:
        super().__init__(str(error))
        self.error = error


class Verdicts:
    """`clock` counts seconds. Close it."""

    def __init__(
        self,
        library: Library,
        trial: Trial | None,
        quarantine: Quarantine,
        costs: CompileCosts,
        clock: Callable[[], float],
        *,
        tries_all: bool,
    ) -> None:
        self._library = library
        self._trial = trial
        self._quarantine = quarantine
        self._costs = costs
        self._clock = clock
        self._tries_all = tries_all
        self._known: Once[Verdict | SpecError] = Once(MAX_VERDICTS)
        self._under_way: Once[None] = Once(0)  # by tenant: nobody's waits in the line of another
        self._reads = Turns(_READS, _MAX_READS_WAITING)
        self._small, self._large = Turns(_SMALL), Turns(_LARGE)
        self._threads = ThreadPoolExecutor(_READS + _SMALL, thread_name_prefix="structured")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def num_waiting(self) -> int:
        """Whatever waits for its turn."""
        return self._reads.num_waiting + self._small.num_waiting + self._large.num_waiting

    async def read(self, asker: Asker, work: Callable[..., _T], *arguments: Any) -> _T:
        """What `work`, which takes some milliseconds, makes of a body. Raises SaturatedError, or
        what it raises."""
        async with self._reads.turn(asker):
            return await self._in_thread(work, *arguments)

    async def of(self, asked: Asked, asker: Asker, *, tries: bool) -> Verdict | SpecError | None:
        """None, if not `tries`: it is valid, and no more is known. Raises SpecError for what is
        invalid, QuarantinedError, ChecksBusyError or SaturatedError."""
        key = asked.spec.key
        self.refuse_in_quarantine(key, asked)
        if not self._is_known(asked.spec, tries=tries):
            with suppress(SpecError, QuarantinedError):  # raised below, of this request
                work = partial(self._find_in_turn, asked, asker, tries=tries)
                await self._under_way.get(f"{asker.tenant}\0{tries}\0{key}", work)
            self.refuse_in_quarantine(key, asked)
        await self._library.check(asked)
        return await self._verdict(asked, here=False) if tries else None

    def refuse_in_quarantine(self, key: str, asked: Asked) -> None:
        """Raises QuarantinedError."""
        why = self._quarantine.refusal(key, self._clock())
        if why is not None:
            raise QuarantinedError(_in_quarantine(asked, why))

    def _is_known(self, spec: Spec, *, tries: bool) -> bool:
        if not self._library.is_known(spec):
            return False
        return not tries or self._known.known(spec.key) is not None

    def _is_small(self, spec: Spec) -> bool:
        return not self._tries_all and not self._library.is_costly(spec)

    async def _find_in_turn(self, asked: Asked, asker: Asker, *, tries: bool) -> None:
        if self._is_small(asked.spec):
            try:
                async with self._small.turn(asker):
                    await self._find(asked, tries=tries, here=True)
                return
            except HeavyError:
                pass
        async with self._large.turn(asker):
            await self._find(asked, tries=tries, here=False)

    async def _find(self, asked: Asked, *, tries: bool, here: bool) -> None:
        await self._library.check(asked)
        if tries:
            await self._verdict(asked, here=here)

    async def _verdict(self, asked: Asked, *, here: bool) -> Verdict | SpecError:
        """`here`: in a thread; raises HeavyError then."""
        spec = asked.spec
        try:
            return await self._known.get(spec.key, partial(self._work_out, spec, here=here))
        except JobKilledError as e:
            if e.lacked_cpu:
                raise ChecksBusyError(f"{asked.place}: compiling it {e}; try again") from None
            self._quarantine.put(spec.key, f"compiling it {e}", self._clock())
            raise QuarantinedError(_in_quarantine(asked, f"compiling it {e}")) from None
        except HelperError as e:
            raise ChecksBusyError(f"{asked.place}: cannot be compiled now: {e}") from None

    async def _work_out(self, spec: Spec, *, here: bool) -> Verdict | SpecError:
        """Raises HelperError, HeavyError."""
        try:
            found = await self._found(spec, here=here)
        except SpecError as e:
            return e.with_traceback(None)
        self._costs.took(spec.key, found.compile_ms)
        return found

    async def _found(self, spec: Spec, *, here: bool) -> Verdict:
        if self._trial is not None and not here:
            return await self._trial.verdict(spec)
        try:
            return await self._in_thread(self._library.verdict, spec)
        except HeavyError:
            if self._trial is not None:
                raise
            raise SpecError("takes more than may be compiled here; simplify it") from None

    def _in_thread(self, work: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


def _in_quarantine(asked: Asked, why: str) -> SpecError:
    return SpecError(f"{asked.place}: is refused for a while: {why}", param=asked.place)
