"""Compiles every spec once, and bounds what that can cost.

A spec is looked for in memory, among the refused, among the builds under way, on disk; only then
it is built: by a thread of ours where the library drops the GIL and has limits of its own, by a
child that can be killed where it has not (`jobs`). What the source says is heavy is built here
after a child has done it (`trials`). Whoever asks gets a future, done within the limits, and an
error only for what is asked there.

A build                                its requests
  waits for a thread                   429 after `wait_seconds`; nobody left: it is dropped
  is at work in a thread               400 after `build_seconds`; the thread is left to it and
                                       replaced. Until it is done, who asks again gets 400 at once.
                                       Nobody left: replaced at once, and what comes is held
  (what the source says is heavy is compiled by a child on trial, and here only after that)
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
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from inferway_structured.cache import MemoryCache, Remembered
from inferway_structured.compile.builds import Build, CachedSpec, HeldSpec, Stage, held_of
from inferway_structured.compile.children import Children
from inferway_structured.compile.compile_limits import CompileLimits
from inferway_structured.compile.failures import QuarantinedError, again, saturated, took_longer
from inferway_structured.compile.workers import Task, Turn, Workers
from inferway_structured.counts import Counts
from inferway_structured.errors import (
    CompileError,
    HeavyError,
    InferwayError,
    SaturatedError,
    SpecError,
    crash_report,
)
from inferway_structured.validate.keywords import label

if TYPE_CHECKING:
    from inferway_structured.compile.builds import Waiter
    from inferway_structured.compile.jobs import Job, Jobs, Source
    from inferway_structured.grammar import Compiled
    from inferway_structured.spec import Spec

logger = logging.getLogger(__name__)

# How late a limit on time may be kept.
_TICK_SECONDS = 0.1
# Threads that are left to builds that take too long.
_MAX_STUCK = 4


class Compilations:
    """Compiles specs for one vocabulary. Any thread may call it; its futures alone raise."""

    def __init__(
        self,
        source: Source,
        limits: CompileLimits | None = None,
        *,
        jobs: Jobs | None = None,
        trials: Jobs | None = None,
        counts: Counts | None = None,
        disk: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`trials`: for what the source says is heavy; None: it is refused. `disk`: a folder for
        what jobs give, shared by processes; None: it is not kept."""
        self.limits = limits or CompileLimits()
        self.counts = counts or Counts()
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._held: MemoryCache[str, CachedSpec] = MemoryCache(self.limits.memory_bytes)
        remembered = self.limits.max_remembered
        self._refused: Remembered[str, SpecError] = Remembered(
            self.limits.refusal_seconds, remembered, clock
        )
        self._builds: dict[str, Build] = {}
        self._workers = Workers(self.limits.num_threads, _MAX_STUCK)
        self._children = Children(jobs, self.limits, self.counts, disk, clock) if jobs else None
        trial = replace(self.limits, child=self.limits.trial)
        self._trials = Children(trials, trial, self.counts, None, clock) if trials else None
        self._watch = threading.Event()
        self._watcher: threading.Thread | None = None
        self._closed = False

    def compile(self, spec: Spec) -> Waiter:
        """Return a future of the compiled spec; what is held comes as a future that is done. It
        raises SpecError (400) for what is refused or took too long, SaturatedError (429) if too
        many wait, CompileError (500) for a fault of ours. Cancelling it drops the build if nobody
        else waits for it and it has not begun."""
        key = spec.key
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return self._asked(key, spec)
            held.num_asked += 1
            due = held.job is not None and held.num_asked >= self.limits.job_after
        if due:
            self._improve(key, held)
        self.counts.cache_hits.add("memory")
        self.counts.requests.add(spec.kind, held.backend, "ok")
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

    def held(self, spec: Spec) -> Compiled | None:
        """Return the compiled spec if it is in memory."""
        with self._lock:
            held = self._held.get(spec.key)
        return None if held is None else held.future.result()

    def held_specs(self, most: int = 256) -> list[HeldSpec]:
        """Return the specs in memory, what was used last first."""
        with self._lock:
            return [
                HeldSpec(key, held.backend, held.seconds, held.num_bytes)
                for key, held in islice(self._held.last_used(), most)
            ]

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Return all that was counted, and what is held now."""
        with self._lock:
            counts = self.counts
            counts.waiting_builds.set(self._num_waiting())
            counts.held_bytes.set(self._held.num_bytes, "memory")
            counts.held_specs.set(len(self._held))
        if self._children is not None:
            counts.held_bytes.set(self._children.disk_bytes(), "disk")
        both = filter(None, (self._children, self._trials))
        counts.quarantined.set(sum(children.num_in_quarantine() for children in both))
        return counts.snapshot()

    def expire(self) -> None:
        """End the waiting for all builds over their time. A thread of ours calls it."""
        now = self._clock()
        with self._lock:
            late = [build for build in self._builds.values() if build.deadline <= now]
            ended = [(build, *self._give_up(build)) for build in late]
        for build, where, waiters in ended:
            if where is Stage.OVERDUE:
                self._workers.leave(build.task)
                self.counts.timeouts.add("thread")
                self._fail(build, waiters, took_longer(self.limits.build_seconds), "timeout")
            elif where is Stage.ENDED:
                self.counts.timeouts.add("queue")
                self._fail(build, waiters, saturated(len(self._builds)), "busy")

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
        for children in filter(None, (self._children, self._trials)):
            children.close()
        self._workers.close()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()

    # Asking: under the lock.

    def _asked(self, key: str, spec: Spec) -> Waiter:
        refused = self._refused.get(key)
        if refused is not None:
            self.counts.cache_hits.add("refused")
            return self._failed(spec, refused, "refused")
        build = self._builds.get(key)
        if build is None:
            if self._closed:
                return self._failed(spec, CompileError("the engine stops"), "closed")
            if self._num_waiting() >= self.limits.max_waiting and not self._drop_a_warm_one():
                return self._failed(spec, saturated(len(self._builds)), "busy")
            build = self._begin(key, spec, Turn.NEXT)
        elif build.stage is Stage.OVERDUE:
            return self._failed(spec, took_longer(self.limits.build_seconds), "timeout")
        else:
            self.counts.joins.add()
            if not build.waiters and self._workers.take_out(build.task):  # it was only warmed
                self._workers.put(build.task)
        waiter: Waiter = Future()
        build.waiters.append(waiter)
        waiter.add_done_callback(partial(self._left, build))
        return waiter

    def _num_waiting(self) -> int:
        return sum(build.stage is Stage.WAITING for build in self._builds.values())

    def _begin(self, key: str, spec: Spec, turn: Turn) -> Build:
        build = Build(key, spec, self._clock() + self.limits.wait_seconds)
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
            if build.stage is Stage.WAITING and not build.waiters:
                self._workers.take_out(build.task)
                self._end(build)
                return True
        return False

    def _end(self, build: Build) -> list[Waiter]:
        """Have the build under way no more. Return who has waited."""
        if self._builds.get(build.key) is build:
            del self._builds[build.key]
        build.stage = Stage.ENDED
        waiters, build.waiters = build.waiters, []
        return waiters

    def _give_up(self, build: Build) -> tuple[Stage, list[Waiter]]:
        """Nobody shall wait for it any longer, unless the child is at it: that has limits of its
        own. What cannot be stopped stays known as under way, so that it is not begun again."""
        if build.job is not None and not build.job.cancel():
            build.deadline = math.inf
            return build.stage, []
        if build.stage is not Stage.BUILDING:
            self._workers.take_out(build.task)
            return Stage.ENDED, self._end(build)
        build.stage, build.deadline = Stage.OVERDUE, math.inf
        waiters, build.waiters = build.waiters, []
        return build.stage, waiters

    def _left(self, build: Build, waiter: Waiter) -> None:
        """A waiter is done; if he was cancelled, he may have been the last."""
        if not waiter.cancelled():
            return
        dropped = False
        with self._lock:
            if waiter not in build.waiters:
                return
            build.waiters.remove(waiter)
            if not build.wanted:
                dropped = build.job.cancel() if build.job else build.stage is Stage.WAITING
                if dropped:
                    self._workers.take_out(build.task)
                    self._end(build)
                elif build.stage is Stage.BUILDING:
                    self._workers.leave(build.task)  # others need not wait for it, either
        waiter.set_running_or_notify_cancel()  # the end of a build does so for all others
        self.counts.requests.add(build.spec.kind, "", "cancelled")
        if dropped:
            self.counts.builds_dropped.add()

    # Building: in our threads.

    def _run(self, build: Build) -> None:
        with self._lock:
            if build.stage is not Stage.WAITING:
                return
            build.stage = Stage.BUILDING
            build.began = self._clock()
            build.deadline = build.began + self.limits.build_seconds
        self._guarded(build, partial(self._make, build))

    def _guarded(self, build: Build, step: Task) -> None:
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

    def _make(self, build: Build) -> None:
        job = self._children.job(build.spec) if self._children is not None else None
        if job is None or self._children is None:
            self._compile_here(build, None)
            return
        compiled = self._children.on_disk(job)
        if compiled is not None:
            self._finish(build, compiled, None)
        elif job.required:
            self._wait_for_child(build, job, self._children)
        else:
            wanted = None if self._children.in_quarantine(job) else job
            self._compile_here(build, wanted)

    def _compile_here(self, build: Build, wanted: Job | None) -> None:
        try:
            compiled = self._source.compile(build.spec)
        except HeavyError as heavy:
            if not (self._trials and (job := self._trials.job(build.spec))):
                raise SpecError(f"{heavy}; simplify it") from None
            self._wait_for_child(build, job, self._trials)
        else:
            self._finish(build, compiled, wanted)

    def _wait_for_child(self, build: Build, job: Job, children: Children) -> None:
        future = children.submit(job)
        with self._lock:
            build.job = future
            if build.stage is Stage.BUILDING:
                build.stage = Stage.CHILD
                build.deadline = self._clock() + self.limits.wait_seconds
            if not build.wanted and future.cancel():
                self._end(build)
        future.add_done_callback(partial(self._child_is_done, build, job, children))

    def _child_is_done(
        self, build: Build, job: Job, children: Children, future: Future[bytes]
    ) -> None:
        """Hand on what the child has made: the helper's thread, which calls this, has more to
        do."""
        step = partial(self._take, build, job, children, future)
        self._workers.put(partial(self._guarded, build, step), Turn.FIRST)

    def _take(self, build: Build, job: Job, children: Children, future: Future[bytes]) -> None:
        if not future.cancelled():
            self._finish(build, children.result(job, future), None)

    # A job that is not required: the spec is held already, and no request waits.

    def _improve(self, key: str, held: CachedSpec) -> None:
        """Begins it, in a thread of ours: the one that asks is the engine's."""
        with self._lock:
            job, held.job = held.job, None
        if job is not None:
            step = partial(self._ask_child, key, held, job)
            self._workers.put(partial(self._quietly, step), Turn.LATER)

    def _ask_child(self, key: str, held: CachedSpec, job: Job) -> None:
        assert self._children is not None
        future = self._children.submit_if_idle(job)
        if future is None:
            held.job = job  # at a later request
            return
        step = partial(self._replace, key, held, job, future)
        future.add_done_callback(lambda _: self._workers.put(partial(self._quietly, step)))

    def _replace(self, key: str, held: CachedSpec, job: Job, future: Future[bytes]) -> None:
        assert self._children is not None
        if not future.cancelled():
            compiled = self._children.result(job, future)
            better = held_of(held.spec, compiled, held.seconds, None)
            with self._lock:
                self._held.put(key, better, better.num_bytes)

    def _quietly(self, step: Task) -> None:
        """Do a step; what is held stays so, whatever happens there."""
        try:
            step()
        except InferwayError:
            pass  # counted where it was raised
        except BaseException as error:
            logger.error(
                "a grammar could not be built, by a fault of ours: %s", crash_report(error)
            )

    # Ending.

    def _finish(self, build: Build, compiled: Compiled, job: Job | None) -> None:
        seconds = self._clock() - build.began
        held = held_of(build.spec, compiled, seconds, job)
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
                self.counts.requests.add(build.spec.kind, compiled.backend, "ok")
                waiter.set_result(compiled)

    def _refuse(self, build: Build, error: InferwayError) -> None:
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
        self, build: Build, waiters: Iterable[Waiter], error: InferwayError, outcome: str
    ) -> None:
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                self._count_failure(build.spec, error, outcome)
                waiter.set_exception(again(error))

    def _failed(self, spec: Spec, error: InferwayError, outcome: str) -> Waiter:
        self._count_failure(spec, error, outcome)
        waiter: Waiter = Future()
        waiter.set_exception(again(error))
        return waiter

    def _count_failure(self, spec: Spec, error: InferwayError, outcome: str) -> None:
        self.counts.requests.add(spec.kind, "", outcome)
        if outcome == "refused" and isinstance(error, SpecError):
            self.counts.refusals.add(label(error.keyword))

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
