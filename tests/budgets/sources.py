"""What there is to read: lines and files of packages and rooms, and what a module brings along."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
CORE = SRC / "inferway"
PACKAGES = {
    **{name: SRC / name for name in ("inferway", "inferway_console", "inferway_llmd")},
    **{name: SRC / name for name in ("inferway_ray", "inferway_sim")},
    "inferway_structured": ROOT / "structured" / "src",
    "inferway_bench": ROOT / "bench" / "src",
}
DOCS = ROOT / "docs"
TESTS = (ROOT / "tests", ROOT / "structured" / "tests", ROOT / "bench" / "tests")
WIRING = (
    *("inferway/app.py", "inferway/servers.py", "inferway/indexer.py"),
    *("inferway/cluster", "inferway_console/records/records.py"),
)
SMALL = 50  # lines
FAMILIES = CORE / "prompts" / "media" / "families.py"
# A reader of one of these must be ready to open what it imports.
NAMED = ("http/forward", "routing/director", "routing/journey", "fleet/zmq_subscriber", "app")


def lines_and_files(*folders: Path) -> dict[str, int]:
    """Return the lines of Python below the folders, and the number of their files."""
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    return {"lines": sum(map(_num_lines, paths)), "files": len(paths)}


def packages() -> dict[str, dict[str, int]]:
    """Return lines and files of each package, and of the tests of all."""
    found = {name: lines_and_files(folder) for name, folder in PACKAGES.items()}
    return {**found, "tests": lines_and_files(*TESTS)}


def rooms() -> dict[str, dict[str, int]]:
    """Return lines and files of each folder directly below inferway/, and of the modules there."""
    folders = sorted(path.parent for path in CORE.glob("*/__init__.py"))
    found = {folder.name: lines_and_files(folder) for folder in folders}
    modules = list(CORE.glob("*.py"))
    return {**found, ".": {"lines": sum(map(_num_lines, modules)), "files": len(modules)}}


def closures() -> dict[str, dict[str, int]]:
    """Return lines and files of what each of `NAMED` imports, directly or through others, itself
    included, wherever the import stands."""
    found = {}
    for name in NAMED:
        paths = closure(CORE / f"{name}.py")
        found[name] = {"lines": sum(map(_num_lines, paths)), "files": len(paths)}
    return found


def closure(module: Path) -> set[Path]:
    """Return the files of core that a module brings along."""
    seen: set[Path] = set()
    to_see = [module]
    while to_see:
        path = to_see.pop()
        if path not in seen:
            seen.add(path)
            to_see += _imports(path)
    return seen


def assigned_from_outside() -> dict[str, dict[str, int]]:
    """Return how many attributes of other objects are assigned where the parts of a process are put
    together: a part is complete when it is made."""
    found = {}
    for name in WIRING:
        path = SRC / name
        paths = [path] if path.is_file() else path.rglob("*.py")
        found[name] = {"attributes": sum(map(_num_assigned_from_outside, paths))}
    return found


def num_corridors() -> int:
    """Return the number of small files of core that one module imports, without the rules of
    families of models: each is a file, however small, and a row of one table."""
    importers = Counter(imported for path in SRC.rglob("*.py") for imported in _imports(path))
    families = _imports(FAMILIES)
    small = [path for path in CORE.rglob("*.py") if 2 < _num_lines(path) < SMALL]
    return sum(importers[path] == 1 for path in small if path not in families)


def num_lines_of_docs() -> int:
    """Return the lines of the pages in docs/, without those that benchmarks write."""
    pages = [path for path in DOCS.rglob("*.md") if path.parent.name != "benchmarks"]
    return sum(map(_num_lines, pages))


def sources() -> dict[str, Any]:
    """Return all of these figures."""
    return {
        "packages": packages(),
        "rooms": rooms(),
        "closures": closures(),
        "assigned from outside": assigned_from_outside(),
        "corridors": {"inferway": {"files": num_corridors()}},
        "docs": {"without results": {"lines": num_lines_of_docs()}},
    }


@cache
def _imports(path: Path) -> frozenset[Path]:
    return frozenset(_imported(ast.parse(path.read_text())))


def _imported(tree: ast.Module) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        else:
            continue
        for name in names:
            parts = name.split(".")
            path = CORE.joinpath(*parts[1:]).with_suffix(".py")
            if parts[0] == "inferway" and path.is_file():
                yield path


def _num_assigned_from_outside(path: Path) -> int:
    targets: list[ast.expr] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets.append(node.target)
    assigned = [each for target in targets for each in ast.walk(target)]
    return sum(isinstance(each, ast.Attribute) and _is_of_another(each) for each in assigned)


def _is_of_another(target: ast.Attribute) -> bool:
    is_own = isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
    return isinstance(target.ctx, ast.Store) and not is_own


@cache
def _num_lines(path: Path) -> int:
    return path.read_text().count("\n")
