"""A child process for work that may hang, eat memory or crash: one job at a time, under limits.

    helper = Sandbox("package.module", limits=Limits(cpu_seconds=2))
    result = helper.call("package.module:function", b"argument")

The function takes bytes and returns bytes. A job over a limit ends with its process, and nothing
else: a spare is waiting, so the next job need not wait for a process to start. One thread owns
the processes and does the jobs in turn; it waits without the GIL.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

from inferway_structured.errors import JobKilledError, SandboxBusyError, SandboxError
from inferway_structured.sandbox.process import Limits, Preparation, SandboxProcess


@dataclass(slots=True)
class SandboxStats:
    """Written by the helper's thread and its callers; read when metrics are scraped."""

    jobs: int = 0
    refused: int = 0  # too many were waiting, or one waited for too long
    started: int = 0  # processes
    kills: dict[str, int] = field(default_factory=dict)  # jobs killed, by limit


class Sandbox:
    """Child processes that do untrusted jobs within limits. Any thread and any event loop may call
    it. It must be closed; then no process outlives it."""

    def __init__(
        self,
        *modules: str,
        limits: Limits,
        max_waiting: int = 8,
        patience_seconds: float = 1.0,
        keep_spare: bool = True,
        prepare: tuple[str, bytes] | None = None,
        stats: SandboxStats | None = None,
    ) -> None:
        """`prepare`: a function of the modules and what it is called with, once in each process,
        before the limits hold: what all jobs need, and a job cannot read. `stats`: of all helpers
        for this kind of work; None: its own."""
        self.limits = limits
        self.stats = SandboxStats() if stats is None else stats
        self._modules = modules
        self._max_waiting = max_waiting
        self._patience_seconds = patience_seconds
        self._keep_spare = keep_spare
        self._preparation = None if prepare is None else in_memory(*prepare)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="helper")
        self._lock = Lock()
        self.num_open = 0  # jobs that wait or run; read by anyone
        self._closed = False
        # The one at work, then the spare. Written by the thread; under the lock, for `close`.
        self._processes: list[SandboxProcess] = []
        # At the latest when no reference to this object is left.
        self._let_go = weakref.finalize(self, _let_go, self._processes, self._preparation)

    def start(self) -> Future[None]:
        """Start the processes now, in the background, instead of with the first job. The future is
        done, or raises SandboxError, when the first of them is ready."""
        with self._lock:
            if self._closed:
                raise _closed()
            return self._thread.submit(self._make_ready)

    @property
    def is_ready(self) -> bool:
        """True if the next job need not wait until its process is prepared."""
        return any(process.is_ready for process in self._processes[:1])

    def call(self, function: str, argument: bytes) -> bytes:
        """Return the job's result. Raises SandboxBusyError if too many wait or this job waited for
        too long, JobKilledError if it passed a limit, JobFailedError if it raised."""
        job = self.submit(function, argument)
        try:
            return job.result(self._patience_seconds)
        except TimeoutError:
            if not job.done() and job.cancel():
                raise self._busy() from None
            return job.result()

    async def call_async(self, function: str, argument: bytes) -> bytes:
        """Return the job's result. Raises as `call`. A caller who is cancelled loses the answer and
        nobody else's."""
        job = self.submit(function, argument)
        answer = asyncio.wrap_future(job)
        try:
            await asyncio.wait([answer], timeout=self._patience_seconds)
            if not answer.done() and job.cancel():
                raise self._busy()
            return await answer
        except asyncio.CancelledError:
            answer.cancel()
            raise

    def close(self) -> None:
        """Kill what is running and refuse what waits."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
        self._thread.shutdown(wait=True)
        self._let_go()

    def submit(self, function: str, argument: bytes) -> Future[bytes]:
        """Return a future of the job's result, for callers that wait in their own way, and as long
        as they like: cancel it then. Raises SandboxBusyError or SandboxError; the future raises as
        `call`. What is called when it is done runs in the helper's thread."""
        with self._lock:
            if self._closed:
                raise _closed()
            if self.num_open > self._max_waiting:
                raise self._busy()
            self.num_open += 1
            job = self._thread.submit(self._do, function, argument)
        job.add_done_callback(self._ended)
        return job

    def _ended(self, _: Future[bytes]) -> None:
        with self._lock:
            self.num_open -= 1

    def _busy(self) -> SandboxBusyError:
        self.stats.refused += 1
        return SandboxBusyError(f"{self.num_open} jobs are at the helper process or wait for it")

    def _do(self, function: str, argument: bytes) -> bytes:
        process = self._started()
        self.stats.jobs += 1
        try:
            return process.do(function, argument)
        except SandboxError as e:
            if self._closed:
                raise _closed() from None
            if isinstance(e, JobKilledError):
                self.stats.kills[e.limit] = self.stats.kills.get(e.limit, 0) + 1
            raise
        finally:
            if not process.usable:
                self._replace(process)

    def _replace(self, process: SandboxProcess) -> None:
        self._drop(process)
        with self._lock:
            if not self._closed:
                self._thread.submit(self._make_ready)

    def _make_ready(self) -> None:
        """Start the next process. What fails here is tried again with the next job."""
        process = self._started()
        try:
            process.wait_until_ready()
        except SandboxError:
            self._drop(process)
            if self._closed:
                raise _closed() from None
            raise

    def _started(self) -> SandboxProcess:
        """The process for the next job. The spare, if it is missing, starts meanwhile."""
        while len(self._processes) < (2 if self._keep_spare else 1):
            if self._closed:
                raise _closed()
            process = SandboxProcess(self._modules, self.limits, self._preparation)
            self.stats.started += 1
            with self._lock:
                self._processes.append(process)
                if self._closed:
                    process.kill()
        return self._processes[0]

    def _drop(self, process: SandboxProcess) -> None:
        with self._lock:
            self._processes.remove(process)
        process.close()


def _let_go(processes: list[SandboxProcess], preparation: Preparation | None) -> None:
    for process in processes:
        process.close()
    processes.clear()
    if preparation is not None:
        os.close(preparation.fd)


def in_memory(function: str, argument: bytes) -> Preparation:
    """Return a preparation whose argument is in a file that is nowhere on disk: each child reads it
    when it has time."""
    fd = os.memfd_create("prepare")
    with open(fd, "wb", closefd=False) as file:
        file.write(argument)
    return Preparation(function, fd)


def _closed() -> SandboxError:
    return SandboxError("the helper is closed")
