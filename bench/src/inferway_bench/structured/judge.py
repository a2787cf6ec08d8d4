"""One system's worker process (`worker`), asked schema by schema."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import msgspec

from inferway_bench.processes import BenchError, with_sources
from inferway_bench.structured.named import is_named
from inferway_bench.structured.plan import Plan
from inferway_bench.structured.results import Judged, System, masks_of
from inferway_bench.structured.sample import Case


class Judge:
    """Its process lives as long as the `with`."""

    def __init__(self, name: str, python: Path, plan: Plan, model: Path) -> None:
        self.name = name
        seconds = plan.outlines_seconds if name.startswith("outlines") else plan.compile_seconds
        command = [python, "-m", "inferway_bench.structured.worker", name, model, seconds]
        self._judged: list[Judged] = []
        self._mask_ns: list[tuple[int, int]] = []  # wall time, and the thread's own
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 closed in __exit__
        self._worker = subprocess.Popen(
            [*map(str, command), str(plan.memory_gib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=with_sources(),
        )

    def __enter__(self) -> Self:
        """Once it is ready: what a process costs to start is no part of a compile."""
        assert self._worker.stdout is not None
        if not self._worker.stdout.readline():
            error = self._ended()
            self.close()  # what is not entered is not left
            raise error
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._worker.kill()
        self._worker.communicate()
        self._errors.close()

    def judge(self, case: Case) -> None:
        """Raises BenchError if the worker has ended."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        try:
            self._worker.stdin.write(msgspec.json.encode(case) + b"\n")
            self._worker.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        line = self._worker.stdout.readline()
        if not line:
            raise self._ended()
        found = json.loads(line)
        self._mask_ns += found.pop("mask_ns", [])
        named = [(place, keyword) for place, keyword in found.pop("unenforced", [])]
        if named:
            texts = [each.text for each in case.instances]
            found["named"] = [is_named(case.schema, text, named) for text in texts]
        self._judged.append(msgspec.convert(found, Judged))

    @property
    def system(self) -> System:
        """What it said of all schemas so far."""
        wall, own = ([one[which] for one in self._mask_ns] for which in (0, 1))
        return System(self.name, masks_of(wall), self._judged, masks_of(own))

    def _ended(self) -> BenchError:
        status = self._worker.wait()
        self._errors.seek(0)
        tail = self._errors.read()[-800:].decode(errors="replace")
        return BenchError(f"{self.name}: its worker ended with {status}: {tail}")
