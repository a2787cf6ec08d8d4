"""The peers from PyPI, in a venv of their own."""

from __future__ import annotations

from pathlib import Path

from inferway.prompts.prepare import cache_dir
from inferway_bench.progress import OnStep
from inferway_bench.venvs import Venv, install_venv

PEERS = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}


def install_peers(on_step: OnStep, directory: Path | None = None) -> Venv:
    """The peers' venv (60 MB from PyPI). Raises BenchError when they cannot be had."""
    wanted = [f"{name}=={version}" for name, version in PEERS.items()]
    cure = "let this machine reach PyPI, or leave the peers out with --no-peers"
    return install_venv(directory or cache_dir() / "peers", wanted, on_step, cure)
