#!/usr/bin/env python3
"""Writes a sample that `inferway bench structured` was measured with, for runs that are to be
compared. JSONSchemaBench's repository states no licence, so that its schemas are not stored here.

    git clone https://github.com/guidance-ai/jsonschemabench
    scripts/jsonschemabench_sample.py jsonschemabench > sample.jsonl
    scripts/jsonschemabench_sample.py jsonschemabench 20261201 > others.jsonl
    inferway bench structured sample.jsonl

Without a number: the schemas that jsonschemabench_sample.txt names, 30 of each of the ten parts.
With one: as many others, drawn from all that are left, the number being the seed.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

SAMPLE = Path(__file__).with_suffix(".txt")


def main(clone: Path, seed: str | None = None) -> None:
    """Print a line for each schema."""
    data = clone / "maskbench" / "data"
    names = SAMPLE.read_text().splitlines()
    if seed is not None:
        left = sorted({path.stem for path in data.glob("*.json")} - set(names))
        names = random.Random(int(seed)).sample(left, len(names))
    for name in names:
        case = json.loads((data / f"{name}.json").read_text())
        print(json.dumps({"id": name, "schema": case["schema"], "tests": case["tests"]}))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), *sys.argv[2:])
