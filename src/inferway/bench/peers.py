"""The peers from PyPI, in a venv of their own that is made once and kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inferway.bench.processes import BenchError
from inferway.prompts.prepare import cache_dir

PEERS = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Peers:
    """The venv with the peers."""

    directory: Path

    def executable(self, name: str) -> Path:
        return self.directory / "bin" / name


def install_peers(on_step: OnStep, directory: Path | None = None) -> Peers:
    """The peers' venv, made if it is not there or holds other versions.

    Raises BenchError with pip's own words when they cannot be had.
    """
    root = directory or cache_dir() / "peers"
    peers = Peers(root / "venv")
    wanted = [f"{name}=={version}" for name, version in PEERS.items()]
    installed = root / "installed.txt"
    if installed.is_file() and installed.read_text().split() == wanted:
        return peers
    on_step(f"making a venv for the peers in {peers.directory}")
    _run([sys.executable, "-m", "venv", "--clear", str(peers.directory)])
    on_step(f"installing {' and '.join(wanted)} from PyPI (60 MB, once)")
    _run([str(peers.executable("python")), "-m", "pip", "install", "--quiet", *wanted])
    installed.write_text("\n".join(wanted) + "\n")
    return peers


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(
            f"{' '.join(command)}: ended with {done.returncode}: {done.stderr.strip()[-500:]}; "
            "the cure: let this machine reach PyPI, or leave the peers out with --no-peers"
        )
