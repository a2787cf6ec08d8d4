"""The tree keeps the shape that docs/architecture.md draws."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "inferway"

# room -> rooms it may import. A room is a folder, or a module directly in inferway/.
_LEAVES = {"errors"}
_PURE_BASE = {"model", *_LEAVES}
_LOW = {"metrics", "tasks", "openai_api", "prompts", "blocks", "index", *_PURE_BASE, "config"}
_MIDDLE = {"events", "scheduling", *_LOW}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "model": _LEAVES,
    "config": _LEAVES,
    "blocks": {*_PURE_BASE, "config"},
    "discovery": {*_PURE_BASE, "config"},
    "openai_api": {"blocks", *_PURE_BASE, "config"},
    "prompts": {"metrics", "openai_api", "blocks", *_PURE_BASE, "config"},
    "tasks": set(),
    "metrics": set(),
    "index": {"metrics", "tasks", "blocks", *_PURE_BASE, "config"},
    "events": _LOW,
    "scheduling": _LOW,
    "gate": {"scheduling", "openai_api", "flow", "config", *_PURE_BASE},
    "steps": {"gate", "flow", *_MIDDLE},
    "director": {"steps", "gate", "flow", *_MIDDLE},
    "upstream": _MIDDLE,
    "fleet": {"upstream", *_MIDDLE},
    "scores": {"steps", "fleet", *_MIDDLE},
    "indexer": {"scores", "steps", "fleet", *_MIDDLE},
    "flow": {"config", *_PURE_BASE},
    "frontends": {
        *{"indexer", "scores", "director", "steps", "gate", "upstream", "fleet", "flow"},
        *_MIDDLE,
    },
    "simulator": {"prompts", "openai_api", "blocks", *_PURE_BASE, "config"},
    "doctor": {"fleet", *_MIDDLE},
    "app": {
        *{"discovery", "gate", "flow", "frontends", "indexer", "director", "steps", "upstream"},
        *{"fleet", *_MIDDLE},
    },
    "demo": {
        "app",
        "simulator",
        "frontends",
        *_MIDDLE,
    },  # shows answers as the access log knows them
    "cli": {
        *{"app", "simulator", "demo", "doctor"},
        *{"frontends", "director", "upstream", "fleet", "flow", *_MIDDLE},
    },
}

# Pure rooms take time as an argument and never wait.
PURE = [
    *[
        "blocks",
        "events",
        "openai_api",
        "scheduling",
        "steps",
        "flow",
        "metrics.py",
        "doctor/rules.py",
    ],
    *(f"index/{path.name}" for path in (SRC / "index").glob("*.py")),
    *(f"gate/{name}.py" for name in ("costs", "counts", "quarantine")),
    *(f"index/redis/{name}.py" for name in ("chains", "writer", "scripts")),
]
FORBIDDEN_IN_PURE = {"asyncio", "socket", "threading", "time", "zmq", "aiohttp", "uvloop"}


def modules(room: str = "") -> list[Path]:
    path = SRC / room
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module == "inferway":
                yield from (f"inferway.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_imports_go_one_way(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    allowed = MAY_IMPORT[room] | {room, "__version__"}

    found = {name.split(".")[1] for name in imports(path) if name.startswith("inferway.")}

    assert found <= allowed, f"{path}: may not import {sorted(found - allowed)}"


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_know_no_clock_socket_or_thread(room: str) -> None:
    for path in modules(room):
        found = {name.split(".")[0] for name in imports(path)}

        assert not found & FORBIDDEN_IN_PURE, f"{path}: {found & FORBIDDEN_IN_PURE}"


def test_the_director_knows_no_clock() -> None:
    assert not {"time", "asyncio"} & set(imports(SRC / "director.py"))


def test_importing_inferway_loads_none_of_its_dependencies() -> None:
    code = (
        "import sys; before = set(sys.modules); import inferway;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "['inferway']"


def test_counters_are_plain_integers_that_one_collector_reads() -> None:
    """prometheus_client's own take a lock and a microsecond each. The engine and its stand-in have
    theirs."""
    live = {f"prometheus_client.{name}" for name in ("Counter", "Gauge", "Histogram", "Summary")}
    for path in modules():
        if room_of(path) == "simulator":
            continue
        named = {
            f"{node.module}.{alias.name}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

        assert not named & live, path


def test_what_is_oldest_is_taken_from_ordered_dicts() -> None:
    """A plain dict goes through all that was deleted before its first item, each time: to take
    50,000 of 150,000 away one by one took 3.5 s."""
    first = re.compile(r"next\(iter\(self\.(\w+)\b")
    for path in modules():
        source = path.read_text()
        for name in first.findall(source):
            assert not re.search(rf"\b{name}: (list\[)?dict\[", source), f"{path}: {name}"
