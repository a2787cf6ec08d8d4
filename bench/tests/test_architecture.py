"""The parts that compute know no clock, and versions go together."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADING = ROOT / "bench" / "src" / "inferway_bench" / "loading"
PURE = ["answers", "generated", "measured", "paired", "plan"]
FORBIDDEN_IN_PURE = {"asyncio", "socket", "threading", "time", "zmq", "aiohttp", "uvloop"}


@pytest.mark.parametrize("name", PURE)
def test_pure_parts_of_a_load_know_no_clock_socket_or_thread(name: str) -> None:
    found: set[str] = set()
    for node in ast.walk(ast.parse((LOADING / f"{name}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])

    assert not found & FORBIDDEN_IN_PURE


def test_versions_go_together() -> None:
    ours, gateway = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for folder in (ROOT / "bench", ROOT)
    )

    assert ours["version"] == gateway["version"]
    assert f"inferway=={ours['version']}" in ours["dependencies"]
