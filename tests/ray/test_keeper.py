"""A replica's program ends with it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Writes its process id, and then does nothing; SIGTERM ends it, or not.
WAITS = """
import os, signal, sys, time
if sys.argv[2:]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


class Kept:
    """A program under a keeper, and its process."""

    def __init__(self, path: Path, *more: str, seconds: float = 30.0) -> None:
        words = [sys.executable, "-m", "inferway_ray.keeper", str(seconds)]
        command = [*words, sys.executable, "-c", WAITS, str(path), *more]
        self.keeper = subprocess.Popen(command, stdin=subprocess.PIPE)
        until(path.exists)
        self.pid = int(path.read_text())

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        self.keeper.kill()
        self.keeper.communicate()

    def is_there(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return "Z" not in Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(condition: object) -> None:
    end = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_it_ends_when_the_pipe_does(tmp_path: Path) -> None:
    with Kept(tmp_path / "pid") as kept:
        assert kept.is_there()
        assert kept.keeper.stdin is not None

        kept.keeper.stdin.close()

        assert kept.keeper.wait(60) == 128 + signal.SIGTERM
        assert not kept.is_there()


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with Kept(tmp_path / "pid", "stubborn", seconds=0.1) as kept:
        kept.keeper.terminate()

        assert kept.keeper.wait(60) == 128 + signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_it_ends_when_its_keeper_is_killed(tmp_path: Path) -> None:
    with Kept(tmp_path / "pid") as kept:
        kept.keeper.kill()

        until(lambda: not kept.is_there())


def ended(*command: str) -> tuple[int, str]:
    """The status of a program that ends by itself, and what is said on standard error."""
    words = [sys.executable, "-m", "inferway_ray.keeper", "1", *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stderr=pipe, text=True) as keeper:
        assert keeper.stderr is not None
        return keeper.wait(60), keeper.stderr.read()


def test_the_status_is_the_programs() -> None:
    assert ended(sys.executable, "-c", "raise SystemExit(7)") == (7, "")


def test_a_program_that_is_not_there_is_named() -> None:
    status, said = ended("/nowhere/vllm")

    assert status == 127
    assert "'/nowhere/vllm' cannot be run: No such file or directory" in said
