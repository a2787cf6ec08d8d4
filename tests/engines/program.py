"""`inferway serve` and `inferway simulate` as people start them, but for the Python that is forked:
processes with a log."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.engines.waiting import wait_until
from tests.fork_server import INFERWAY, ForkedProcess, fork_server

STOP_SECONDS = 40

# What the two commands say of themselves; engines have addresses in the log as well.
_LISTENS = re.compile(r"(?:listening on|simulated engine) (http://127\.0\.0\.1:\d+)")


class Program:
    """A command of `inferway` that listens on a free port and says on which. `alone`: in a new
    Python, whose environment the kernel can tell."""

    def __init__(
        self, arguments: Sequence[str], log: Path, *, port: int = 0, alone: bool = False
    ) -> None:
        self.log = log
        self._arguments = [*arguments, "--port", str(port)]
        self._alone = alone
        self._process: subprocess.Popen[bytes] | ForkedProcess

    def __enter__(self) -> Program:
        self.begin()
        return self.listens()

    def begin(self) -> None:
        """Start it, which need not listen yet."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        with self.log.open("wb") as log:
            if not self._alone:
                output = str(self.log.absolute())
                self._process = fork_server().start(self._arguments, environment, output)
                return
            self._process = subprocess.Popen(
                [str(INFERWAY), *self._arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def listens(self) -> Program:
        """Wait until it listens."""
        try:
            self.url = wait_until(self._listening, "it says where it listens", self._whats_up)
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> int:
        """As Ctrl-C does. Returns the exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def _listening(self) -> str | None:
        if self._process.poll() is not None:
            raise RuntimeError(f"it ended with status {self._process.returncode}{self._whats_up()}")
        found = _LISTENS.search(self.log_text())
        return found[1] if found else None

    def _whats_up(self) -> str:
        return f"\n--- {self.log}\n{self.log_text()[-4000:]}"
