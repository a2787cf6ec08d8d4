"""SIGKILL and a full disk, for real: a process writes and compacts its journal until then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tests.fleet.journal.killed import believed, believed_after, num_loaded
from tests.fleet.journal.lives import life

ROOT = Path(__file__).parents[3]
KILLS = 6


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.fleet.journal.killed", str(path), *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def kill_in(path: Path, phase: str, numbers: Random) -> int:
    """Kills it somewhere in `phase`; how many batches were in its files for certain."""
    child = start(path)
    assert child.stdout is not None
    wait_for = {"writing": numbers.randrange(1, 12), "compacting": 1, "compacted": 1}[phase]
    lines = [child.stdout.readline() for _ in range(wait_for)]
    while phase == "compacted" and lines[-1].split()[1:] == ["0"]:
        lines.append(child.stdout.readline())
    while phase == "compacting" and not any(path.glob("*/*.tmp")) and child.poll() is None:
        continue
    child.kill()
    rest, errors = child.communicate()
    assert errors == ""
    whole = [*lines, *rest.splitlines(keepends=True)]
    return max(int(line.split()[0]) + 1 for line in whole if line.endswith("\n"))


@pytest.mark.slow
async def test_whatever_it_was_doing_a_killed_gateway_left_a_true_journal(tmp_path: Path) -> None:
    """Of each life the next one goes on where its files end; each is judged by the state that
    the engine's batches up to there come to."""
    numbers = Random(5)
    for kill in range(KILLS):
        phase = ("writing", "compacting", "compacted")[kill % 3]
        certain = kill_in(tmp_path, phase, numbers)

        async with life(tmp_path) as found:
            num_batches = num_loaded(found)
            assert num_batches >= certain > 0
            assert believed(found) == believed_after(num_batches)
            assert found.journal is not None
            assert found.journal.proof == "pending"
    assert list(tmp_path.glob("*/*.snapshot"))


@pytest.mark.parametrize("limit", [10_000, 100_001])
async def test_a_disk_that_is_full_ends_the_journal_where_it_is_true(
    tmp_path: Path, limit: int
) -> None:
    child = start(tmp_path, str(limit))
    _, errors = child.communicate(timeout=60)

    assert child.returncode == 0
    assert "its journal ends here for this run: [Errno 27] File too large; the next start" in errors
    async with life(tmp_path) as found:
        num_batches = num_loaded(found)
        assert num_batches > 0
        assert believed(found) == believed_after(num_batches)
