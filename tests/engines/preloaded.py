"""vLLM, imported once for all engines of a run (inside/preload.py): each is ready in a fifth of the
time that `vllm serve` takes."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

PRELOAD = Path(__file__).parent / "inside" / "preload.py"


class ForkedProcess:
    """What `subprocess.Popen` has, of a process that is not our child: without its status."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = -1

    def poll(self) -> int | None:
        """None while it runs."""
        return 0 if self._ends_within(0) else None

    def wait(self, timeout: float) -> int:
        if not self._ends_within(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return 0

    def _ends_within(self, seconds: float) -> bool:
        return self._pidfd < 0 or bool(select.select([self._pidfd], [], [], seconds)[0])

    def __del__(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)


class Preloaded:
    """A Python that has imported vLLM. It ends with the process that made it."""

    def __init__(self, python: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [str(python), str(PRELOAD)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> ForkedProcess:
        """`vllm ARGUMENTS`, in a session of its own. Raises RuntimeError if vLLM could not be
        imported; what it said is on standard error."""
        order = {"arguments": arguments, "environment": dict(environment), "log": str(log)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            print(json.dumps(order), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{PRELOAD} ended with status {self._process.wait()}")
        return ForkedProcess(int(answer))
