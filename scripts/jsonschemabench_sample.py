#!/usr/bin/env python3
"""Writes the sample that `inferway bench structured` was measured with, for runs that are to be
compared. JSONSchemaBench's repository states no licence, so that its schemas are not stored here.

    git clone https://github.com/guidance-ai/jsonschemabench
    scripts/jsonschemabench_sample.py jsonschemabench > sample.jsonl
    inferway bench structured sample.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

STORED = Path(__file__).parents[1] / "docs" / "results" / "structured.json"


def main(clone: Path) -> None:
    """A line for each schema of the stored run: 30 of each of the ten parts."""
    for line in STORED.read_text().splitlines():
        if "schemas" in (stored := json.loads(line)):
            name = stored["schemas"]["id"]
            case = json.loads((clone / "maskbench" / "data" / f"{name}.json").read_text())
            print(json.dumps({"id": name, "schema": case["schema"], "tests": case["tests"]}))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
