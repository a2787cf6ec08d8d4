"""SIGKILL, for real: a process writes snapshots until then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tests.fleet.killed import believed, believed_after, num_loaded
from tests.fleet.lives import life

ROOT = Path(__file__).parents[2]
KILLS = 6


def kill(path: Path, after: int) -> None:
    """Kills it some moment after so many snapshots."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.fleet.killed", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    for _ in range(after):
        child.stdout.readline()
    child.kill()
    _, errors = child.communicate()
    assert errors == ""


@pytest.mark.slow
async def test_whatever_it_was_doing_a_killed_gateway_left_a_true_snapshot(tmp_path: Path) -> None:
    """Each life goes on where the snapshot before it ends, and is judged by the state that the
    engine's batches up to there come to."""
    numbers = Random(5)
    before = 0
    for _ in range(KILLS):
        kill(tmp_path, after=numbers.randrange(1, 12))

        async with life(tmp_path) as found:
            num_batches = num_loaded(found)
            assert num_batches > before
            assert believed(found) == believed_after(num_batches)
            assert found.snapshot is not None
            assert found.snapshot.figures.proof == "pending"
        before = num_batches
