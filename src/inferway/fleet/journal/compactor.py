"""Has journals compacted, one after the other, each in a process of its own (`compact`)."""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inferway.fleet.journal.files import install, snapshot_name
from inferway.fleet.journal.writer import CLOSE_SECONDS

log = logging.getLogger("inferway.journal")


@dataclass(frozen=True, slots=True)
class Job:
    """A holder's journals up to `number` are to become a snapshot. `done` is called by the
    compactor's thread, with the snapshot's size or None if there is none."""

    engine: str
    directory: Path
    number: int
    lock: threading.Lock  # who changes which files there are holds it
    is_wanted: Callable[[], bool]  # whether the journal goes on; asked under the lock
    done: Callable[[int | None, float], object]


class Compactor:
    """`put` from any thread; `close` ends what is under way, which then leaves nothing behind
    but a file that `files.recover` removes."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal-compactor", daemon=True)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._closed = False

    def start(self) -> None:
        self._thread.start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """Idempotent. Returns when the thread has ended, if the disk lets it."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.kill()
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    # the thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            began = time.monotonic()
            num_bytes: int | None = None
            try:
                num_bytes = self._compact(job)
            except OSError as e:
                log.error("engine %s: its journal cannot be compacted: %s", job.engine, e)
            job.done(num_bytes, time.monotonic() - began)

    def _compact(self, job: Job) -> int | None:
        out = job.directory / f"{snapshot_name(job.number)}.tmp"
        out.unlink(missing_ok=True)
        error = self._write(job, out)
        if error is not None:
            out.unlink(missing_ok=True)
            if not self._closed:
                log.error("engine %s: its journal cannot be compacted: %s", job.engine, error)
            return None
        with job.lock:
            if not job.is_wanted():
                out.unlink(missing_ok=True)
                return None
            size = out.stat().st_size
            for _ in install(job.directory, job.number, out):
                pass
        return size

    def _write(self, job: Job, out: Path) -> str | None:
        """Why there is no snapshot; None if there is one."""
        module = "inferway.fleet.journal.compact"
        arguments = [str(job.directory), str(job.number), str(out)]
        with self._lock:
            if self._closed:
                return "closed"
            self._child = child = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                # Ctrl-C in the terminal is for us alone. No session of its own: while it has not
                # begun we wait for it with the GIL held, and niceness counts within a session.
                process_group=0,
            )
        _, errors = child.communicate()
        with self._lock:
            self._child = None
        if child.returncode == 0:
            return None
        return errors.strip().rpartition("\n")[2] or f"exit status {child.returncode}"
