"""Packages of others, each set in a venv of its own that is made once and kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep


@dataclass(frozen=True, slots=True)
class Venv:
    """A venv's directory."""

    directory: Path

    def executable(self, name: str) -> Path:
        return self.directory / "bin" / name


def install_venv(directory: Path, wanted: Sequence[str], on_step: OnStep, cure: str) -> Venv:
    """The venv in `directory` with exactly the packages `wanted` (NAME==VERSION), made of this
    process's interpreter if it is not there or holds others.

    Raises BenchError with pip's own words and `cure` when they cannot be had.
    """
    venv = Venv(directory / "venv")
    installed = directory / "installed.txt"
    if installed.is_file() and installed.read_text().split() == list(wanted):
        return venv
    on_step(f"making a venv in {venv.directory}")
    _run([sys.executable, "-m", "venv", "--clear", str(venv.directory)], cure)
    on_step(f"installing {' and '.join(wanted)} from PyPI (once)")
    _run([str(venv.executable("python")), "-m", "pip", "install", "--quiet", *wanted], cure)
    installed.write_text("\n".join(wanted) + "\n")
    return venv


def _run(command: list[str], cure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(
            f"{' '.join(command)}: ended with {done.returncode}: {done.stderr.strip()[-500:]}; "
            f"fix: {cure}"
        )
