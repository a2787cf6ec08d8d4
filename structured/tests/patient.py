"""Limits by CPU time: a helper of normal priority, and wall time enough on a busy machine."""

from inferway_structured.sandbox.process import Limits

PATIENT = Limits(memory_bytes=512 << 20, cpu_seconds=1, wall_seconds=60, niceness=0)
