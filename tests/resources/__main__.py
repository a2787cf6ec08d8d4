"""`python -m tests.resources`: 10,000 idle connections, 2,000 streams and 2,000 slow clients at an
`inferway serve` of its own; the figures into docs/results/resources.json. Status 1 if an answer is
wrong, a descriptor is left, or an idle connection takes more than MAX_KB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from tests.resources.measures import SLOW_SECONDS, idle, slow, streams
from tests.resources.worlds import world

from inferway_bench.machine import this_machine

MAX_KB = 24.0
SLOW = f"timeouts: {{request_body: {SLOW_SECONDS}}}\n"


async def measure(scale: float) -> dict[str, Any]:
    """Each in a process of its own."""
    figures: dict[str, Any] = {}
    for name, measure_one, number, config in (
        ("idle", idle, 10_000, ""),
        ("streams", streams, 2_000, ""),
        ("slow", slow, 2_000, SLOW),
    ):
        with tempfile.TemporaryDirectory() as directory:
            async with world(Path(directory), config) as one:
                figures[name] = await measure_one(one, int(number * scale))
        print(name, json.dumps(figures[name]), flush=True)
    return figures


def wrong(figures: dict[str, Any]) -> list[str]:
    """What does not hold."""
    found = [
        f"{name}: descriptors left" for name in figures if figures[name]["descriptors_left"] > 0
    ]
    if max(v for k, v in figures["idle"].items() if k.startswith("kb_each")) > MAX_KB:
        found.append(f"idle: over {MAX_KB} KB for each connection")
    if figures["streams"]["wrong"]:
        found.append("streams: wrong answers")
    if figures["slow"]["told_408"] != figures["slow"]["clients"]:
        found.append("slow: not all were told")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.resources", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of connections")
    parser.add_argument("--out", type=Path, help="where the figures go")
    options = parser.parse_args()
    machine = this_machine()
    figures = uvloop.run(measure(options.scale))
    found = wrong(figures)
    for line in found:
        print(line)
    if options.out is not None and not found:
        result = {"machine": msgspec.to_builtins(machine), **figures}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
