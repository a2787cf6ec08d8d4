"""The workers' other end: started, asked, always ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferway_bench.cpu import resident_bytes
from inferway_bench.processes import BenchError
from inferway_bench.prompts import worker

# No hub, and no advice about frameworks that are not there.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}


@dataclass(frozen=True, slots=True)
class Interpreters:
    """Which Python runs which system."""

    transformers: Path
    inferway: Path = Path(sys.executable)

    def of(self, system: str) -> Path:
        return self.inferway if system == "inferway" else self.transformers


class Asked:
    """A worker process that runs. Not for several threads."""

    def __init__(self, system: str, process: subprocess.Popen[str], log: Path) -> None:
        self.system = system
        self._process = process
        self._log = log

    def ask(self, what: str, **details: object) -> Mapping[str, Any]:
        """Raises BenchError, with what the worker said last, when it has no answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **details}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            tail = self._log.read_text(errors="replace")[-800:]
            raise BenchError(f"{self.system}, {what}: the worker ended: {tail}")
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"{self.system}, {what}: {answer['error']}")
        return answer

    @property
    def resident_bytes(self) -> int:
        return resident_bytes(self._process.pid)


@contextmanager
def asked(system: str, interpreters: Interpreters, directory: Path) -> Iterator[Asked]:
    """A fresh worker; its standard error goes to a file in `directory`."""
    log = directory / f"{system}.log"
    command = [str(interpreters.of(system)), "-P", str(worker.__file__), system]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **_ENVIRONMENT},
        )
    try:
        yield Asked(system, process, log)
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """At the end of its input a worker ends by itself."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
