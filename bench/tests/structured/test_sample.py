"""The schemas that `scripts/jsonschemabench_sample.py` takes from a clone of JSONSchemaBench."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "jsonschemabench_sample.py"
NAMED = SCRIPT.with_suffix(".txt").read_text().splitlines()


def sample(clone: Path, *seed: str) -> list[str]:
    command = [sys.executable, str(SCRIPT), str(clone), *seed]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line)["id"] for line in printed.splitlines()]


def test_a_sample_has_the_named_schemas_or_others_that_a_seed_draws(tmp_path: Path) -> None:
    data = tmp_path / "maskbench" / "data"
    data.mkdir(parents=True)
    for name in [*NAMED, *(f"other{number}" for number in range(500))]:
        (data / f"{name}.json").write_text('{"schema": {}, "tests": [], "more": 1}')

    others = sample(tmp_path, "7")

    assert sample(tmp_path) == NAMED
    assert len(NAMED) == len(set(others)) == 300
    assert not set(others) & set(NAMED)
    assert others == sample(tmp_path, "7") != sample(tmp_path, "8")
