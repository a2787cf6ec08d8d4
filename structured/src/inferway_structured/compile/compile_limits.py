"""Limits of what compiling may cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferway_structured.compile.compile_trial import LIMITS as TRIAL
from inferway_structured.sandbox.process import Limits


@dataclass(frozen=True, slots=True)
class CompileLimits:
    num_threads: int = 2
    max_waiting: int = 64  # builds that have not begun
    wait_seconds: float = 10.0
    build_seconds: float = 2.0
    memory_bytes: int = 256 << 20  # of what is compiled; malloc keeps about as much again
    disk_bytes: int = 1 << 30
    refusal_seconds: float = 60.0  # a refused spec is refused again without looking
    quarantine_seconds: float = 3600.0  # a job that has killed its child is not tried again
    max_remembered: int = 4096  # refusals; and jobs in quarantine
    job_after: int = 3  # requests for a spec, before a job that is not required is worth it
    child: Limits = field(
        default_factory=lambda: Limits(
            memory_bytes=512 << 20,
            cpu_seconds=2,
            wall_seconds=10.0,
            result_bytes=16 << 20,  # to load a MiB takes 2 ms, with the GIL
            niceness=19,
        )
    )
    trial: Limits = TRIAL  # of a compile in a child, before it is done here
