"""vLLM's own code without an engine: the installed version's, and that of newer releases of which
the Python files alone are there (scripts/install_vllm_sources.sh)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = "installed"
# scripts/fleet.sh has these, too.
SOURCES = ("0.33.0",)


@dataclass(frozen=True, slots=True)
class VllmCode:
    """`python`: of the environment that vLLM is installed in. `sources`: a folder with the Python
    files of another version, which it runs instead."""

    python: Path
    sources: Path | None = None

    def run(
        self, arguments: Sequence[str], *, cwd: Path = ROOT, given: str = "", seconds: float = 300
    ) -> str:
        """Run Python with these arguments, and return what it prints. Fails with what it says."""
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if self.sources is not None:
            env["PYTHONPATH"] = str(self.sources)
        done = subprocess.run(
            [self.python, *arguments],
            cwd=cwd,
            env={**env, "PYTHONDONTWRITEBYTECODE": "1"},
            input=given,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def code_of(version: str, vllm: Path) -> VllmCode:
    """Return the code of a version in SOURCES, or INSTALLED. `vllm`: the installed command."""
    python = vllm.with_name("python")
    if version == INSTALLED:
        return VllmCode(python)
    sources = ROOT / ".vllm-sources" / version
    if not sources.exists():
        pytest.fail(f"{sources} is not there; run scripts/install_vllm_sources.sh {version}")
    return VllmCode(python, sources)
