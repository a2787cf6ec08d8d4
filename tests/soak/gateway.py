"""`inferway serve`, which counts what it is made of when it gets SIGUSR1.

`python -m tests.soak.gateway COUNTS ARGUMENTS…` is `inferway ARGUMENTS…`; each SIGUSR1 adds a line
to the file COUNTS: a JSON object with the event loop's tasks and our living objects by class.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from inferway.cli.main import main


class Counts(msgspec.Struct, frozen=True):
    """What a process is made of, at a moment."""

    tasks: int
    objects: dict[str, int]  # module.class, of ours


def take_counts() -> Counts:
    """Call it in the loop's thread."""
    gc.collect()
    found = Counter(
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in map(type, gc.get_objects())
        if kind.__module__.startswith("inferway.")
    )
    return Counts(len(asyncio.all_tasks()), dict(found))


def _count_when_asked(path: Path) -> None:
    def write(*_: Any) -> None:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(take_counts()) + b"\n")

    signal.signal(signal.SIGUSR1, write)


if __name__ == "__main__":
    _count_when_asked(Path(sys.argv[1]))
    main(sys.argv[2:], prog_name="inferway")
