"""Compiles every spec once, and bounds what that can cost.

A spec is looked for in memory, among the refused, among the builds under way; only then it is
built, by a thread of ours. What is heavy is built here after a child that can be killed has done
it. Whoever asks gets a future, done within the limits, and an error only
for what is asked there.

A build                                its requests
  waits for a thread                   429 after `wait_seconds`; nobody left: it is dropped
  is at work in a thread               400 after `build_seconds`; the thread is left to it and
                                       replaced. Until it is done, who asks again gets 400 at once.
                                       Nobody left: replaced at once, and what comes is held
  waits for the child                  429 after `wait_seconds`; nobody left: it is dropped
  is at work in the child              400 when it is killed; it is not tried again for a while,
                                       unless it was only the clock that killed it
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from inferway_structured.cache import RecentlyUsed, Remembered
from inferway_structured.compile.compile_trial import LIMITS as TRIAL
from inferway_structured.compile.compile_trial import Jobs
from inferway_structured.compile.cost import estimated_bytes
from inferway_structured.compile.workers import Task, Turn, Workers
from inferway_structured.counts import Counts
from inferway_structured.errors import (
    CompileError,
    HeavyError,
    InferwayError,
    JobFailedError,
    JobKilledError,
    QuarantinedError,
    SandboxBusyError,
    SandboxError,
    SaturatedError,
    SpecError,
    again,
    crash_report,
)
from inferway_structured.sandbox.process import Limits
from inferway_structured.sandbox.sandbox import Sandbox
from inferway_structured.spec import packed
from inferway_structured.validate.keywords import label

if TYPE_CHECKING:
    from inferway_structured.grammar import Compiled
    from inferway_structured.spec import Kind, Spec

logger = logging.getLogger(__name__)

# How late a limit on time may be kept.
_TICK_SECONDS = 0.1
# Threads that are left to builds that take too long.
_MAX_STUCK = 4
_MAX_COMPILES_WAITING = 8  # beside the one that the child is at


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """The limits of what compiling may cost."""

    num_threads: int = 2
    max_waiting: int = 64  # builds that have not begun
    wait_seconds: float = 10.0
    build_seconds: float = 2.0
    memory_bytes: int = 256 << 20  # of what is compiled; malloc keeps about as much again
    refusal_seconds: float = 60.0  # a refused spec is refused again without looking
    quarantine_seconds: float = 3600.0  # a spec that has killed its child is not tried again
    max_remembered: int = 4096  # refusals; and specs in quarantine
    trial: Limits = TRIAL  # of a compile in a child, before it is done here


class Waiter(Future["Compiled"]):
    """A future of a compiled spec. Requests are counted; one that only asks for the verdict is
    not."""

    def __init__(self, *, is_request: bool = True) -> None:
        super().__init__()
        self.is_request = is_request


class HeldSpec(NamedTuple):
    """A compiled spec that is held in memory. The future is done, and everybody's."""

    key: str
    backend: str
    seconds: float  # it took, in the thread and the child, and would again
    num_bytes: int
    kind: Kind
    future: Waiter


class _Stage(Enum):
    WAITING = auto()
    BUILDING = auto()
    OVERDUE = auto()  # still building, and no request waits for it any more
    CHILD = auto()
    ENDED = auto()


@dataclass(eq=False, slots=True)
class _Build:
    """A build under way. It is read and written under the manager's lock, but for `task`."""

    key: str  # the spec's
    spec: Spec
    deadline: float
    warm: bool = False  # wanted even if no request waits for it
    waiters: list[Waiter] = field(default_factory=list)
    stage: _Stage = _Stage.WAITING
    task: Task = lambda: None
    job: Future[bytes] | None = None
    began: float = 0.0

    @property
    def wanted(self) -> bool:
        return self.warm or bool(self.waiters)


class Compilations:
    """Compiles specs for one vocabulary. Any thread may call it; its futures alone raise."""

    def __init__(
        self,
        compile_here: Callable[[Spec], Compiled],
        limits: CompileLimits | None = None,
        *,
        trials: Jobs | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`compile_here`, of any thread, raises SpecError for what is refused, and would be again,
        HeavyError if that is not to be done here before a child has done it (`trials`); without
        those it is refused, too."""
        self.limits = limits or CompileLimits()
        self.counts = Counts()
        self._compile_here = compile_here
        self._clock = clock
        self._lock = threading.Lock()
        self._held: RecentlyUsed[str, HeldSpec] = RecentlyUsed(self.limits.memory_bytes)
        remembered = self.limits.max_remembered
        self._refused: Remembered[str, SpecError] = Remembered(
            self.limits.refusal_seconds, remembered, clock
        )
        self._builds: dict[str, _Build] = {}
        self._workers = Workers(self.limits.num_threads, _MAX_STUCK)
        # Why each has killed the child, by the spec's key.
        self._killers: Remembered[str, str] = Remembered(
            self.limits.quarantine_seconds, remembered, clock
        )
        self._jobs = trials
        self._child: Sandbox | None = None  # and the next when it was killed; from the first job on
        if trials is not None:
            self._child = Sandbox(
                trials.function.partition(":")[0],
                limits=self.limits.trial,
                max_waiting=_MAX_COMPILES_WAITING,
                keep_spare=False,
                prepare=None if trials.prepare is None else (trials.prepare, b"-"),
            )
        self._watch = threading.Event()
        self._watcher: threading.Thread | None = None
        self._closed = False

    def compile(self, spec: Spec, *, is_request: bool = True) -> Waiter:
        """Return a future of the compiled spec; what is held comes as a future that is done. It
        raises SpecError (400) for what is refused or took too long, SaturatedError (429) if too
        many wait, CompileError (500) for a fault of ours. Cancelling it drops the build if nobody
        else waits for it and it has not begun. Not `is_request`: it is not counted as one."""
        found = self._found(spec.key, spec, is_request)
        assert found is not None
        return found

    def known(self, key: str) -> Waiter | None:
        """Return what `compile` does of the spec with this key; None if it is not in memory."""
        return self._found(key, None, is_request=True)

    def _found(self, key: str, spec: Spec | None, is_request: bool) -> Waiter | None:
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return None if spec is None else self._asked(key, spec, is_request)
        if is_request:
            self.counts.cache_hits.add("memory")
            self.counts.requests.add(held.kind, held.backend, "ok")
        return held.future

    def warm(self, spec: Spec) -> bool:
        """Build the spec though no request waits for it yet, after all builds that requests wait
        for. Return False if half of the places are taken and it is neither held nor under way."""
        key = spec.key
        with self._lock:
            if key in self._builds or self._held.get(key) is not None:
                return True
            if self._closed or self._num_waiting() >= self.limits.max_waiting // 2:
                return False
            self._begin(key, spec, Turn.LATER).warm = True
            return True

    def held_specs(self, most: int = 256) -> list[HeldSpec]:
        """Return the specs in memory, what was used last first."""
        with self._lock:
            return list(islice(self._held.last_used(), most))

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Return all that was counted, and what is held now."""
        with self._lock:
            counts = self.counts
            counts.waiting_builds.set(self._num_waiting())
            counts.held_bytes.set(self._held.size, "memory")
            counts.held_specs.set(len(self._held))
            counts.quarantined.set(len(self._killers))
        return counts.snapshot()

    def expire(self) -> None:
        """End the waiting for all builds over their time. A thread of ours calls it."""
        now = self._clock()
        with self._lock:
            late = [build for build in self._builds.values() if build.deadline <= now]
            ended = [(build, *self._give_up(build)) for build in late]
        for build, where, waiters in ended:
            if where is _Stage.OVERDUE:
                self._workers.leave(build.task)
                self.counts.timeouts.add("thread")
                self._fail(build, waiters, _took_longer(self.limits.build_seconds), "timeout")
            elif where is _Stage.ENDED:
                self.counts.timeouts.add("queue")
                self._fail(build, waiters, _saturated(len(self._builds)), "busy")

    def close(self) -> None:
        """Fail the requests that wait, kill the children, end the threads. A thread whose library
        does not come back is left; it does not keep the process alive."""
        with self._lock:
            self._closed = True
            builds = list(self._builds.values())
            waiting = [(build, self._end(build)) for build in builds]
        self._watch.set()
        for build, waiters in waiting:
            self._fail(build, waiters, CompileError("the engine stops"), "closed")
        if self._child is not None:
            self._child.close()
        self._workers.close()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()

    # Asking: under the lock.

    def _asked(self, key: str, spec: Spec, is_request: bool) -> Waiter:
        waiter = Waiter(is_request=is_request)
        refused = self._refused.get(key)
        if refused is not None:
            if is_request:
                self.counts.cache_hits.add("refused")
            return self._failed(waiter, spec, refused, "refused")
        build = self._builds.get(key)
        if build is None:
            if self._closed:
                return self._failed(waiter, spec, CompileError("the engine stops"), "closed")
            if self._num_waiting() >= self.limits.max_waiting and not self._drop_a_warm_one():
                return self._failed(waiter, spec, _saturated(len(self._builds)), "busy")
            build = self._begin(key, spec, Turn.NEXT)
        elif build.stage is _Stage.OVERDUE:
            late = _took_longer(self.limits.build_seconds)
            return self._failed(waiter, spec, late, "timeout")
        else:
            if is_request:
                self.counts.joins.add()
            if not build.waiters and self._workers.take_out(build.task):  # it was only warmed
                self._workers.put(build.task)
        build.waiters.append(waiter)
        waiter.add_done_callback(partial(self._left, build))
        return waiter

    def _num_waiting(self) -> int:
        return sum(build.stage is _Stage.WAITING for build in self._builds.values())

    def _begin(self, key: str, spec: Spec, turn: Turn) -> _Build:
        build = _Build(key, spec, self._clock() + self.limits.wait_seconds)
        build.task = partial(self._run, build)
        self._builds[key] = build
        self._workers.put(build.task, turn)
        if self._watcher is None:
            self._watcher = threading.Thread(
                target=self._keep_watch, name="compile-watch", daemon=True
            )
            self._watcher.start()
        if len(self._builds) == 1:
            self._watch.set()
        return build

    def _drop_a_warm_one(self) -> bool:
        for build in self._builds.values():
            if build.stage is _Stage.WAITING and not build.waiters:
                self._workers.take_out(build.task)
                self._end(build)
                return True
        return False

    def _end(self, build: _Build) -> list[Waiter]:
        """Have the build under way no more. Return who has waited."""
        if self._builds.get(build.key) is build:
            del self._builds[build.key]
        build.stage = _Stage.ENDED
        waiters, build.waiters = build.waiters, []
        return waiters

    def _give_up(self, build: _Build) -> tuple[_Stage, list[Waiter]]:
        """Nobody shall wait for it any longer, unless the child is at it: that has limits of its
        own. What cannot be stopped stays known as under way, so that it is not begun again."""
        if build.job is not None and not build.job.cancel():
            build.deadline = math.inf
            return build.stage, []
        if build.stage is not _Stage.BUILDING:
            self._workers.take_out(build.task)
            return _Stage.ENDED, self._end(build)
        build.stage, build.deadline = _Stage.OVERDUE, math.inf
        waiters, build.waiters = build.waiters, []
        return build.stage, waiters

    def _left(self, build: _Build, waiter: Waiter) -> None:
        """A waiter is done; if he was cancelled, he may have been the last."""
        if not waiter.cancelled():
            return
        dropped = False
        with self._lock:
            if waiter not in build.waiters:
                return
            build.waiters.remove(waiter)
            if not build.wanted:
                dropped = build.job.cancel() if build.job else build.stage is _Stage.WAITING
                if dropped:
                    self._workers.take_out(build.task)
                    self._end(build)
                elif build.stage is _Stage.BUILDING:
                    self._workers.leave(build.task)  # others need not wait for it, either
        waiter.set_running_or_notify_cancel()  # the end of a build does so for all others
        if waiter.is_request:
            self.counts.requests.add(build.spec.kind, "", "cancelled")
        if dropped:
            self.counts.builds_dropped.add()

    # Building: in our threads.

    def _run(self, build: _Build) -> None:
        with self._lock:
            if build.stage is not _Stage.WAITING:
                return
            build.stage = _Stage.BUILDING
            build.began = self._clock()
            build.deadline = build.began + self.limits.build_seconds
        self._guarded(build, partial(self._make, build))

    def _guarded(self, build: _Build, step: Task) -> None:
        """Whatever happens there ends this build only."""
        try:
            step()
        except InferwayError as error:
            self._refuse(build, error)
        except BaseException as error:  # of Rust's panics, too, which are no Exceptions
            logger.error(
                "a grammar could not be built, by a fault of ours: %s", crash_report(error)
            )
            self._refuse(build, CompileError(f"a grammar library failed: {type(error).__name__}"))

    def _make(self, build: _Build) -> None:
        try:
            compiled = self._compile_here(build.spec)
        except HeavyError as heavy:
            if self._child is None:
                raise SpecError(f"{heavy}; simplify it") from None
            self._wait_for_child(build, self._child)
        else:
            self._finish(build, compiled)

    def _wait_for_child(self, build: _Build, child: Sandbox) -> None:
        assert self._jobs is not None
        with self._lock:
            why = self._killers.get(build.key)
        if why is not None:
            raise QuarantinedError(why)
        try:
            future = child.submit(self._jobs.function, packed(build.spec))
        except SandboxBusyError:
            message = f"{_MAX_COMPILES_WAITING} grammars wait to be compiled; try again later"
            raise SaturatedError(message) from None
        except SandboxError as error:
            raise CompileError(str(error)) from error
        with self._lock:
            build.job = future
            if build.stage is _Stage.BUILDING:
                build.stage = _Stage.CHILD
                build.deadline = self._clock() + self.limits.wait_seconds
            if not build.wanted and future.cancel():
                self._end(build)
        # The helper's thread, which calls this, has more to do.
        step = partial(self._guarded, build, partial(self._take, build, future, self._jobs))
        future.add_done_callback(lambda _: self._workers.put(step, Turn.FIRST))

    def _take(self, build: _Build, future: Future[bytes], jobs: Jobs) -> None:
        """Take what the child has made; what has killed it is in quarantine."""
        if future.cancelled():
            return
        try:
            said = future.result()
        except JobKilledError as error:
            why = f"compiling it {error}"
            self.counts.helper_kills.add(error.limit)
            if error.lacked_cpu:
                self.counts.timeouts.add("child")
            else:
                with self._lock:
                    self._killers.put(build.key, why)
            raise QuarantinedError(why) from None
        except JobFailedError as error:
            raise SpecError(f"the grammar library refuses it: {error}") from None
        except SandboxError as error:
            raise CompileError(str(error)) from error
        self._finish(build, jobs.finish(build.spec, said))

    # Ending.

    def _finish(self, build: _Build, compiled: Compiled) -> None:
        seconds = self._clock() - build.began
        done = Waiter()
        done.set_result(compiled)
        # No fewer bytes than such a spec usually takes.
        num_bytes = max(compiled.num_bytes, estimated_bytes(build.spec))
        held = HeldSpec(build.key, compiled.backend, seconds, num_bytes, build.spec.kind, done)
        left_out = [label(unenforced.keyword) for unenforced in compiled.unenforced]
        with self._lock:
            if not self._closed:
                self._held.put(build.key, held, held.num_bytes)
            waiters = self._end(build)
        self.counts.compile_wall_seconds.observe(seconds)
        for keyword in left_out:
            self.counts.unenforced.add(keyword)
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                if waiter.is_request:
                    self.counts.requests.add(build.spec.kind, compiled.backend, "ok")
                waiter.set_result(compiled)

    def _refuse(self, build: _Build, error: InferwayError) -> None:
        killed = isinstance(error, QuarantinedError)
        with self._lock:
            waiters = self._end(build)
            if isinstance(error, SpecError) and not killed:
                self._refused.put(build.key, again(error))
        outcome = "refused" if isinstance(error, SpecError) else "failed"
        if isinstance(error, SaturatedError):
            outcome = "busy"
        self._fail(build, waiters, error, "killed" if killed else outcome)

    def _fail(
        self, build: _Build, waiters: Iterable[Waiter], error: InferwayError, outcome: str
    ) -> None:
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                self._failed(waiter, build.spec, error, outcome)

    def _failed(self, waiter: Waiter, spec: Spec, error: InferwayError, outcome: str) -> Waiter:
        if waiter.is_request:
            self.counts.requests.add(spec.kind, "", outcome)
            if outcome == "refused" and isinstance(error, SpecError):
                self.counts.refusals.add(label(error.keyword))
        waiter.set_exception(again(error))
        return waiter

    def _keep_watch(self) -> None:
        while not self._closed:
            self._watch.wait(_TICK_SECONDS if self._builds else None)
            self._watch.clear()
            try:
                self.expire()
            except Exception as error:
                logger.error(
                    "the watch over builds of grammars failed, by a fault of ours: %s",
                    crash_report(error),
                )


def _saturated(num_builds: int) -> SaturatedError:
    return SaturatedError(f"{num_builds} grammars are compiled or wait for it; try again later")


def _took_longer(seconds: float) -> SpecError:
    return SpecError(f"took longer than {seconds:g} s to compile")
