"""Jobs, done by a child that can be killed: its results on disk, what killed it in quarantine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from inferway_structured.cache import Remembered
from inferway_structured.compile.disk import DiskCache, name_of
from inferway_structured.compile.failures import QuarantinedError
from inferway_structured.errors import (
    CompileError,
    JobFailedError,
    JobKilledError,
    SandboxBusyError,
    SandboxError,
    SaturatedError,
    SpecError,
)
from inferway_structured.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from inferway_structured.compile.compile_limits import CompileLimits
    from inferway_structured.compile.jobs import Job, Jobs
    from inferway_structured.counts import Counts
    from inferway_structured.grammar import Compiled
    from inferway_structured.spec import Spec

logger = logging.getLogger(__name__)

# Jobs that wait for the child, beside the one it is at.
_MAX_WAITING = 8


class Children:
    """A child process that does jobs. Any thread may use it; methods that take time say so. The
    child starts with the first job."""

    def __init__(
        self,
        jobs: Jobs,
        limits: CompileLimits,
        counts: Counts,
        disk: Path | None,
        clock: Callable[[], float],
    ) -> None:
        self._jobs = jobs
        self._limits = limits
        self._counts = counts
        self._disk = None if disk is None else DiskCache(disk, limits.disk_bytes)
        self._lock = Lock()
        # Why each was killed, by its name.
        self._killers: Remembered[str, str] = Remembered(
            limits.quarantine_seconds, limits.max_remembered, clock
        )
        self._helper: Sandbox | None = None
        self._closed = False

    def job(self, spec: Spec) -> Job | None:
        return self._jobs.job(spec)

    def on_disk(self, job: Job) -> Compiled | None:
        """Return what a job has made before; None if it is not on disk. Takes as long as loading
        does."""
        if self._disk is None:
            return None
        name = self._name(job)
        data = self._disk.get(name)
        if data is None:
            return None
        try:
            compiled = job.finish(data)
        except Exception as error:  # whole, but not what the library reads: built again
            logger.warning(
                "the file %s in the disk cache of grammars cannot be used: %s",
                name,
                type(error).__name__,
            )
            self._disk.forget(name)
            return None
        self._counts.cache_hits.add("disk")
        return compiled

    def in_quarantine(self, job: Job) -> bool:
        with self._lock:
            return self._killers.get(self._name(job)) is not None

    def submit(self, job: Job) -> Future[bytes]:
        """Hand the job to the child. The first time, this takes as long as making what the child is
        prepared with. Raises QuarantinedError, SaturatedError if too many wait, or CompileError if
        no child can be had."""
        with self._lock:
            why = self._killers.get(self._name(job))
            if why is not None:
                raise QuarantinedError(why)
        try:
            return self._started().submit(job.function, job.argument)
        except SandboxBusyError:
            message = f"{_MAX_WAITING} grammars wait to be compiled; try again later"
            raise SaturatedError(message) from None
        except SandboxError as error:
            raise CompileError(str(error)) from error

    def submit_if_idle(self, job: Job) -> Future[bytes] | None:
        """Hand the job to the child if nothing else is there: it can as well be done later, or not
        at all. Raises as `submit`."""
        return None if self.num_open() else self.submit(job)

    def num_open(self) -> int:
        """Return the number of jobs that wait for the child or are being done."""
        return 0 if self._helper is None else self._helper.num_open

    def result(self, job: Job, future: Future[bytes]) -> Compiled:
        """Return what a job that is done has made; it is kept on disk, too. Takes as long as
        writing and loading do. Raises SpecError or CompileError."""
        try:
            data = future.result()
        except JobKilledError as error:
            raise self._killed(job, error) from None
        except JobFailedError as error:
            raise SpecError(f"the grammar library refuses it: {error}") from None
        except SandboxError as error:
            raise CompileError(str(error)) from error
        compiled = job.finish(data)
        if self._disk is not None:
            self._disk.put(self._name(job), data)
        return compiled

    def disk_bytes(self) -> int:
        return 0 if self._disk is None else self._disk.num_bytes()

    def num_in_quarantine(self) -> int:
        with self._lock:
            return len(self._killers)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            helper, self._helper = self._helper, None
        if helper is not None:
            helper.close()

    def _name(self, job: Job) -> str:
        return name_of(self._jobs.fingerprint.encode(), job.function.encode(), job.argument)

    def _killed(self, job: Job, error: JobKilledError) -> QuarantinedError:
        self._counts.helper_kills.add(error.limit)
        why = f"compiling it {error}"
        if error.lacked_cpu:
            self._counts.timeouts.add("child")
        else:
            with self._lock:
                self._killers.put(self._name(job), why)
        return QuarantinedError(why)

    def _started(self) -> Sandbox:
        with self._lock:
            if self._closed:
                raise SandboxError("the helper is closed")
            if self._helper is None:
                child = self._jobs.child
                prepare = None if child.prepare is None else (child.prepare, child.argument())
                self._helper = Sandbox(
                    *child.modules,
                    limits=self._limits.child,
                    max_waiting=_MAX_WAITING,
                    keep_spare=False,  # it holds a vocabulary
                    prepare=prepare,
                )
            return self._helper
