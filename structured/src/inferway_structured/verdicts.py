"""Verdicts on shapes and on answers: one service, in front of the engines and in them. Everything
is worked out once for all who ask, each in its turn, off the event loop.

what                                     where                          at a time
reading a large body                     a thread                       1
a small check, its verdict               threads                        2
what is large, or turns out to be        helper processes               2
judging small answers                    threads                        2
judging large answers                    threads, a helper process      2

A spec whose compile is killed with its helper process is refused for a while. What cannot have its
turn in time is refused, too, and an answer that cannot be judged in time is not judged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from inferway_structured.cache import RecentlyUsed, Remembered
from inferway_structured.counts import Counts
from inferway_structured.errors import (
    ChecksBusyError,
    HeavyError,
    InferwayError,
    JobKilledError,
    QuarantinedError,
    SandboxError,
    SaturatedError,
    SpecError,
    again,
    crash_report,
)
from inferway_structured.explain import explain
from inferway_structured.grammar import Unenforced, Verdict
from inferway_structured.report import in_request, keeps_all, left_free, refuse_unenforced
from inferway_structured.sandbox.sandbox import Sandbox
from inferway_structured.spec import OutputConstraint, Spec
from inferway_structured.texts import AnswerText
from inferway_structured.turns import (
    ANYBODY,
    MAX_WAITING,
    WAIT_SECONDS,
    Asker,
    FirstComeTurns,
    MakeTurns,
)
from inferway_structured.validate.keywords import label
from inferway_structured.validate.limits import SpecLimits
from inferway_structured.verdict_store import VerdictStore

log = logging.getLogger("inferway.structured")

MAX_VERDICTS = 4096
MAX_CHECKED = 16_384  # specs that are known to be valid or not; 1 kB each at most
MAX_QUARANTINED = 4096
MAX_REQUESTS_BYTES = 16 << 20
_REQUEST_BYTES = 2_000  # and of each shape; beside the texts
MAX_BODY_ON_LOOP = 16 * 1024  # read in 5 ms at worst: thousands of {}
MAX_SMALL_ANSWER = 64 * 1024  # characters
JUDGE_SECONDS = 2.0
_READS, _SMALL, _LARGE, _JUDGEMENTS = 1, 2, 2, 2  # at a time
_MAX_READS_WAITING = 4096  # each takes a few milliseconds; most turn out to ask what is known
_MAX_IN_ONE_GO = 64  # specs that are looked at before others have a turn

_T = TypeVar("_T")

# What is kept of a request, and which keywords the answer may break. Shared: only read it.
Examined = tuple[Sequence[OutputConstraint], Sequence[Unenforced]]


class _KnownRequest:
    """The shapes of a request, and what has become of them, by how they were examined."""

    __slots__ = ("asked", "examined")

    def __init__(self, asked: Sequence[OutputConstraint]) -> None:
        self.asked = asked
        self.examined: dict[tuple[bool, bool], Examined] = {}


class SingleFlight(Generic[_T]):
    """Keeps the `most` values that were asked for last, by their keys. Who asks while a value is
    being worked out waits for the same work, and who stops waiting leaves it to the others."""

    def __init__(self, most: int) -> None:
        self._known: RecentlyUsed[str, _T] = RecentlyUsed(most)
        self._coming: dict[str, asyncio.Future[_T]] = {}

    def __len__(self) -> int:
        """Return how many values are kept."""
        return len(self._known)

    def known(self, key: str) -> _T | None:
        """Return the value if it is kept."""
        return self._known.get(key)

    def keep(self, key: str, value: _T) -> None:
        """Keep a value that was worked out elsewhere."""
        self._known.put(key, value)

    async def get(self, key: str, work: Callable[[], Awaitable[_T]]) -> _T:
        """Return the value that is kept, or the result of `work`. Raises what `work` raises, which
        is not kept."""
        found = self.known(key)
        if found is not None:
            return found
        coming = self._coming.get(key)
        if coming is None:
            coming = self._coming[key] = asyncio.ensure_future(work())
            coming.add_done_callback(lambda done: self._came(key, done))
        return await asyncio.shield(coming)

    def _came(self, key: str, done: asyncio.Future[_T]) -> None:
        del self._coming[key]
        if not done.cancelled() and done.exception() is None:
            self.keep(key, done.result())


class Library(Protocol):
    """The interface that judges shapes and answers; `library.GrammarLibrary` is the one in use."""

    @property
    def helpers(self) -> Mapping[str, Sandbox]:
        """The processes for what is large, by the name of their work."""

    async def check(self, spec: Spec) -> None:
        """Raises SpecError for what is invalid or over a limit, or ChecksBusyError. May be awaited
        in any event loop."""

    def is_costly(self, spec: Spec) -> bool:
        """Return whether the verdict may take more than some milliseconds, or memory. Takes no
        time."""

    def verdict(self, spec: Spec) -> Verdict:
        """Return the verdict, after some milliseconds: it is called in a thread. Raises SpecError
        if no backend takes the spec, HeavyError if only a trial may find that out."""

    async def trial(self, spec: Spec) -> Verdict:
        """Return the verdict, worked out where that can be killed. Raises SpecError,
        JobKilledError, or another SandboxError if it cannot be tried now. May be awaited in any
        event loop."""

    def is_valid(self, spec: Spec, text: str) -> bool | None:
        """Return whether a finished text has the shape; None if that cannot be told. Called in a
        thread."""

    def close(self) -> None: ...


class Verdicts:
    """The service of verdicts. Used from one event loop, but for `verdict_now`. Close it."""

    def __init__(
        self,
        library: Library,
        *,
        quarantine_seconds: float,
        tries_all: bool = False,
        make_turns: MakeTurns = FirstComeTurns,
        took: Callable[[str, float], None] = lambda *_: None,
        store: VerdictStore | None = None,
        counts: Counts | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`tries_all`: every verdict is worked out where it can be killed, not only what may take
        long. `took` is told what compiling a spec is estimated to take, by its key, in
        milliseconds. `store`: keeps verdicts for the next start. `clock` counts seconds."""
        self.library = library
        self.counts = counts or Counts()
        self.quarantine: Remembered[str, str] = Remembered(
            quarantine_seconds, MAX_QUARANTINED, clock
        )
        self._tries_all = tries_all
        self._took = took
        self._checked: SingleFlight[SpecError | bool] = SingleFlight(MAX_CHECKED)
        self._known: SingleFlight[Verdict | SpecError] = SingleFlight(MAX_VERDICTS)
        self._requests: RecentlyUsed[bytes, _KnownRequest] = RecentlyUsed(MAX_REQUESTS_BYTES)
        # by tenant: none waits in the line of another
        self._under_way: SingleFlight[None] = SingleFlight(0)
        self._reads = make_turns(_READS, _MAX_READS_WAITING, WAIT_SECONDS)
        self._small = make_turns(_SMALL, MAX_WAITING, WAIT_SECONDS)
        self._large = make_turns(_LARGE, MAX_WAITING, WAIT_SECONDS)
        self._small_answers = make_turns(_JUDGEMENTS, MAX_WAITING, JUDGE_SECONDS)
        self._large_answers = make_turns(_JUDGEMENTS, MAX_WAITING, JUDGE_SECONDS)
        self._threads = ThreadPoolExecutor(_READS + _SMALL, thread_name_prefix="structured")
        # an answer may keep a helper busy; that must not hold up requests
        self._judges = ThreadPoolExecutor(2 * _JUDGEMENTS, thread_name_prefix="judges")
        self.tasks: set[asyncio.Task[Any]] = set()
        self._store = store
        for key, found in [] if store is None else store.load(MAX_VERDICTS):
            self._checked.keep(key, True)
            self._known.keep(key, found)
            self._tell_took(key, found)

    async def close(self) -> None:
        """End what is under way, with every process of ours."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for threads in (self._threads, self._judges):
            threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.library.close)

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for a verdict before an engine sees them."""
        return self._reads.num_waiting + self._small.num_waiting + self._large.num_waiting

    # ------------------------------------------------------------------ before an engine sees it

    async def read(
        self,
        asker: Asker,
        work: Callable[..., _T],
        *arguments: Any,
        num_bytes: int = MAX_BODY_ON_LOOP + 1,
    ) -> _T:
        """Return what `work`, which may take some milliseconds, makes of a body of that size: at
        once if it is small. Raises SaturatedError, or what `work` raises."""
        if num_bytes <= MAX_BODY_ON_LOOP:
            return work(*arguments)
        async with self._reads.turn(asker):
            return await self._in_thread(work, *arguments)

    async def read_request(
        self,
        asker: Asker,
        key: bytes | None,
        work: Callable[..., Sequence[OutputConstraint]],
        *arguments: Any,
        num_bytes: int,
    ) -> Sequence[OutputConstraint]:
        """Return what a request asks for, as `read` does: at once where another one with this key
        did lately."""
        known = None if key is None else self._requests.get(key)
        if known is not None:
            return known.asked
        asked = await self.read(asker, work, *arguments, num_bytes=num_bytes)
        if key is not None:
            texts = sum([len(each.spec.text) for each in asked])
            held = len(key) + texts + _REQUEST_BYTES * (1 + len(asked))
            self._requests.put(key, _KnownRequest(asked), held)
        return asked

    async def examine(
        self,
        asked: Sequence[OutputConstraint],
        asker: Asker = ANYBODY,
        *,
        key: bytes | None = None,
        compiles: bool = True,
        refuses_unenforced: bool = False,
    ) -> Examined:
        """Return what is kept of a request, and which keywords the answer may break. What need not
        be kept and cannot be is freed. Not `compiles`: only its validity matters, because engines
        enforce it in a way of their own. `refuses_unenforced`: a keyword that cannot be enforced is
        refused where `strict` was asked for. `key`: of the request, as for `read_request`. Raises
        SpecError with the place in the request, or ChecksBusyError or SaturatedError when too many
        wait."""
        how = (compiles, refuses_unenforced)
        known = None if key is None else self._requests.get(key)
        if known is not None and how in known.examined and not self.quarantine:
            return known.examined[how]
        kept: list[OutputConstraint] = []
        unenforced: list[Unenforced] = []
        for number, each in enumerate(asked, 1):
            try:
                found = await self.find(each, asker, compiles=compiles or self._tries_all)
                verdict = _given(each, found) if compiles else None
                left = verdict.unenforced if verdict is not None else ()
                if refuses_unenforced:
                    refuse_unenforced(each, left)
            except SpecError as e:
                if not each.may_be_free:
                    raise
                each, left = each.freed(e), ()
            kept.append(each)
            unenforced += (left_free(each),) if each.free else left
            if number % _MAX_IN_ONE_GO == 0:
                await asyncio.sleep(0)
        examined = kept, unenforced
        if known is not None:
            known.examined[how] = examined
        return examined

    async def find(
        self,
        asked: OutputConstraint,
        asker: Asker = ANYBODY,
        *,
        compiles: bool = True,
        checks: bool = True,
    ) -> Verdict | SpecError | None:
        """Return the verdict on a spec, or what the backends refuse it for. Not `compiles`: only
        whether it is valid, None. Not `checks`: its validity is known. Raises SpecError for what is
        invalid, QuarantinedError, ChecksBusyError or SaturatedError."""
        key = asked.spec.key
        self._refuse_in_quarantine(asked)
        if not self._is_known(asked.spec, compiles=compiles, checks=checks):
            with suppress(SpecError):  # raised below, of this request
                work = partial(self._find_in_turn, asked, asker, compiles=compiles, checks=checks)
                await self._under_way.get(f"{asker.tenant}\0{compiles}\0{checks}\0{key}", work)
            self._refuse_in_quarantine(asked)
        if checks:
            await self._check(asked)
        return await self._verdict(asked, here=False) if compiles else None

    async def verdict(
        self, asked: OutputConstraint, asker: Asker = ANYBODY, *, checks: bool = True
    ) -> Verdict:
        """Return the verdict on a spec. Raises as `find`, and SpecError for what the backends
        refuse, with the place in the request."""
        found = _given(asked, await self.find(asked, asker, checks=checks))
        assert found is not None
        return found

    def is_judged(self, spec: Spec) -> bool:
        """Return whether the verdict on a spec is known, or what the backends refuse it for."""
        return self._known.known(spec.key) is not None

    def learn(self, spec: Spec, found: Verdict | SpecError) -> None:
        """Keep what was found elsewhere; what was killed there is refused for a while."""
        if isinstance(found, QuarantinedError):
            self.quarantine.put(spec.key, str(found))
        else:
            self._known.keep(spec.key, found)

    def verdict_now(self, asked: OutputConstraint) -> Verdict:
        """Return the verdict to a caller that may block, in any thread. Raises SpecError with the
        place in the request, or ChecksBusyError."""
        if not self._is_known(asked.spec, compiles=True, checks=True):
            with ThreadPoolExecutor(1) as alone:  # an event loop may run in this thread
                alone.submit(asyncio.run, self._find_alone(asked)).result()
        _given(asked, self._checked.known(asked.spec.key))
        found = _given(asked, self._known.known(asked.spec.key))
        assert found is not None
        return found

    async def explain(
        self,
        asked: OutputConstraint,
        asker: Asker = ANYBODY,
        *,
        refuses_unenforced: bool,
        refused: SpecError | None = None,
    ) -> dict[str, Any]:
        """Return what would become of the shape, keyword by keyword, as JSON. `refused`: what who
        asks refuses it for. Raises ChecksBusyError or SaturatedError."""
        found: Verdict | SpecError | None = None
        invalid: SpecError | None = None
        try:
            found = refused or await self.find(asked, asker)
        except QuarantinedError as e:
            found = e
        except SpecError as e:
            invalid = e
        told = await self.read(
            *(asker, explain, asked, invalid, found, SpecLimits(), refuses_unenforced)
        )
        return {"place": asked.place, **told}

    def _refuse_in_quarantine(self, asked: OutputConstraint) -> None:
        why = self.quarantine.get(asked.spec.key)
        if why is not None:
            raise quarantined(asked, why)

    def _is_known(self, spec: Spec, *, compiles: bool, checks: bool) -> bool:
        valid = self._checked.known(spec.key) if checks else True
        if valid is None or isinstance(valid, SpecError):
            return valid is not None
        return not compiles or self._known.known(spec.key) is not None

    def _is_small(self, spec: Spec) -> bool:
        return not self._tries_all and not self.library.is_costly(spec)

    async def _find_in_turn(
        self, asked: OutputConstraint, asker: Asker, *, compiles: bool, checks: bool
    ) -> None:
        async def find(*, here: bool) -> None:
            if checks:
                await self._check(asked)
            if compiles:
                await self._verdict(asked, here=here)

        if self._is_small(asked.spec):
            with suppress(HeavyError):
                async with self._small.turn(asker):
                    await find(here=True)
                return
        async with self._large.turn(asker):
            await find(here=False)

    async def _check(self, asked: OutputConstraint) -> None:
        """Raises SpecError or ChecksBusyError."""
        _given(asked, await self._checked.get(asked.spec.key, partial(self._validity, asked.spec)))

    async def _validity(self, spec: Spec) -> SpecError | bool:
        try:
            await self.library.check(spec)
        except SpecError as e:
            return e.with_traceback(None)
        return True

    async def _verdict(self, asked: OutputConstraint, *, here: bool) -> Verdict | SpecError:
        """`here`: in a thread; raises HeavyError then."""
        spec = asked.spec
        try:
            return await self._known.get(spec.key, partial(self._work_out, spec, here=here))
        except SandboxError as e:
            raise _not_tried(asked, e) from None

    async def _work_out(self, spec: Spec, *, here: bool) -> Verdict | SpecError:
        """Raises SandboxError, HeavyError. For a compile that was killed, and not for lack of CPU,
        the spec is to blame."""
        found: Verdict | SpecError
        try:
            if here:
                found = await self._in_thread(self.library.verdict, spec)
            else:
                found = await self.library.trial(spec)
        except SpecError as e:
            self.counts.refusals.add(label(e.keyword))
            found = e.with_traceback(None)
        except JobKilledError as e:
            if not e.lacked_cpu:
                self.counts.refusals.add(label(None))
                self.quarantine.put(spec.key, f"compiling it {e}")
            raise
        self._tell_took(spec.key, found)
        if self._store is not None:
            self._in_thread(self._store.put, spec.key, found)
        return found

    def _tell_took(self, key: str, found: Verdict | SpecError) -> None:
        if isinstance(found, Verdict):
            self._took(key, found.compile_seconds * 1000)

    async def _find_alone(self, asked: OutputConstraint) -> None:
        """Find a verdict without a turn, in an event loop of its own."""
        spec, found = asked.spec, None
        self._refuse_in_quarantine(asked)
        valid = await self._validity(spec)
        self._checked.keep(spec.key, valid)
        if isinstance(valid, SpecError):
            return
        if self._is_small(spec):
            with suppress(HeavyError):
                found = await self._work_out(spec, here=True)
        try:
            self._known.keep(spec.key, found or await self._work_out(spec, here=False))
        except SandboxError as e:
            raise _not_tried(asked, e) from None

    def _in_thread(self, work: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    # ------------------------------------------------------------------------ when it is answered

    async def is_valid(
        self,
        asked: Sequence[OutputConstraint],
        said: Sequence[AnswerText] | None,
        asker: Asker = ANYBODY,
    ) -> bool | None:
        """Return whether an answer, which has said this, has its shape; None if that cannot be
        told, or not in time. Counts it."""
        valid = None
        if said is not None:
            work = self.spawn(self._judged(asked, said, asker))
            done, _ = await asyncio.wait([work], timeout=JUDGE_SECONDS)
            if done and not work.cancelled() and work.exception() is None:
                valid = work.result()
        self.count_answer(valid)
        return valid

    def count_answer(self, valid: bool | None) -> None:
        """Count an answer by whether it has its shape."""
        self.counts.answers.add("unknown" if valid is None else "true" if valid else "false")

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start what goes on by itself; it ends with the service."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "an answer could not be judged by its shape, by a fault of ours: %s",
                crash_report(error),
            )

    async def _judged(
        self, asked: Sequence[OutputConstraint], said: Sequence[AnswerText], asker: Asker
    ) -> bool | None:
        is_small = sum([len(each.text) for each in said]) <= MAX_SMALL_ANSWER and not any(
            self.library.is_costly(each.spec) for each in asked
        )
        turns = self._small_answers if is_small else self._large_answers
        try:
            async with turns.turn(asker):
                return await asyncio.get_running_loop().run_in_executor(
                    self._judges, keeps_all, asked, said, self.library.is_valid
                )
        except (SaturatedError, RuntimeError):  # too many wait, or we are closed
            return None


def quarantined(asked: OutputConstraint, why: str) -> QuarantinedError:
    """Return the error of a spec that is refused for a while."""
    words = _at(asked, f"is refused for a while: {why}")
    return QuarantinedError(words, param=asked.place or None)


def _at(asked: OutputConstraint, words: str) -> str:
    return f"{asked.place}: {words}" if asked.place else words


def _not_tried(asked: OutputConstraint, error: SandboxError) -> InferwayError:
    """Return what is told instead of a verdict."""
    if not isinstance(error, JobKilledError):
        return ChecksBusyError(_at(asked, f"cannot be compiled now: {error}"))
    if error.lacked_cpu:
        return ChecksBusyError(_at(asked, f"compiling it {error}; try again"))
    return quarantined(asked, f"compiling it {error}")


def _given(asked: OutputConstraint, found: _T | SpecError) -> _T:
    """Return what was found. Raises what the spec is refused for, with its place in the request."""
    if isinstance(found, SpecError):
        raise in_request(asked, again(found)) from None
    return found
