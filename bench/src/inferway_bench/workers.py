"""Measurements in processes of their own: one that does a task, one that is asked in JSON lines,
and the order in which several take turns."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from tempfile import TemporaryFile
from typing import Any, Self, TypeVar

from inferway_bench.cpu import resident_bytes
from inferway_bench.processes import BenchError, with_sources

_TAIL = 800  # characters of its standard error, told with an error
_Side = TypeVar("_Side")


def in_turn(sides: Sequence[_Side], repeat: int) -> list[_Side]:
    """Return `sides` in the order of a repeat: another one is first each time, so that what the
    machine does meets all alike."""
    first = repeat % len(sides)
    return [*sides[first:], *sides[:first]]


def result_of(python: object, module: str, *words: str) -> Any:
    """Run a module of ours under a Python that need not have it installed, and return the JSON
    value that it prints. Raises BenchError, with what it said last, when it fails."""
    command = [str(python), "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=with_sources(), check=False)
    if done.returncode != 0:
        raise BenchError(
            f"{module}: its process ended with {done.returncode}: {done.stderr.strip()[-_TAIL:]}"
        )
    return json.loads(done.stdout)


class JsonWorker:
    """A process that answers each JSON line on its standard input with one on its standard output.
    It lives as long as the `with`. Not for several threads."""

    def __init__(self, name: str, command: Sequence[object], env: Mapping[str, str]) -> None:
        self.name = name
        self._errors = TemporaryFile()  # noqa: SIM115 closed in __exit__
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(env),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, question: object) -> Any:
        """Return the answer. Raises BenchError, with what the process said last, when it has
        ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self.read()

    def read(self) -> Any:
        """Return what the process says next. Raises BenchError as `ask` does."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    @property
    def resident_bytes(self) -> int:
        """The resident memory of the process and its children."""
        return resident_bytes(self._process.pid)

    def _ended(self) -> BenchError:
        status = self._process.wait()
        self._errors.seek(0)
        tail = self._errors.read().decode(errors="replace")[-_TAIL:]
        return BenchError(f"{self.name}: its worker ended with {status}: {tail}")
