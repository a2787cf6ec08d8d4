"""The tests of a part of the project, for `make test-part`: one path a line.

    tests_of_part.py routing fleet/discovery structured/tests/backends tests/http/test_leaks.py
    tests_of_part.py

A part is a path, or one below tests/. Without a part it is what differs from the last commit:
each source's own tests (src/inferway/http/auth.py has tests/http/test_auth.py), or, if it has none
of its own, those of its room.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

# Where sources are, and where their tests are.
MIRRORED = {
    "src/inferway": "tests",
    "src/inferway_console": "tests/console",
    "src/inferway_llmd": "tests/llmd",
    "src/inferway_ray": "tests/ray",
    "src/inferway_sim": "tests/sim",
    "structured/src/inferway_structured": "structured/tests",
    "bench/src/inferway_bench": "bench/tests",
}
# Other files that tests read.
READ_BY = {
    "docs": ["tests/test_docs.py", "tests/test_guides.py"],
    "README.md": ["tests/test_docs.py", "tests/test_readme.py"],
    "CONTRIBUTING.md": ["tests/test_docs.py"],
    "deploy": ["tests/deploy"],
    "scripts": ["tests/test_makefile.py", "tests/test_ci.py"],
    "Makefile": ["tests/test_makefile.py", "tests/test_ci.py"],
    ".ci": ["tests/test_ci.py"],
    "pyproject.toml": ["tests/test_makefile.py", "tests/test_ci.py"],
}


def named(root: Path, parts: Iterable[str]) -> list[str]:
    """Exits with what there is if a part is nowhere."""
    found = []
    for part in parts:
        places = [place for place in (part, f"tests/{part}") if (root / place).exists()]
        if not places:
            rooms = sorted({each.parent.name for each in root.glob("tests/*/test_*.py")})
            sys.exit(f"PART={part!r}: neither a path nor one below tests/, which has {rooms}")
        found.append(places[-1])
    return found


def of_changed(root: Path, changed: Iterable[str]) -> list[str]:
    """Those of changed files that are there."""
    found: dict[str, None] = {}
    for path in changed:
        found |= dict.fromkeys(place for place in _places(root, path) if (root / place).exists())
    return [each for each in found if not any(str(up) in found for up in Path(each).parents)]


def _places(root: Path, path: str) -> list[str]:
    for sources, tests in MIRRORED.items():
        if path.startswith(f"{sources}/"):
            return [_mirrored(root, Path(path).relative_to(sources), tests)]
    if path.startswith(tuple(f"{tests}/" for tests in MIRRORED.values())):
        is_test = Path(path).match("test_*.py")
        room = str(Path(path).parent)
        return [path] if is_test else [] if room in MIRRORED.values() else [room]
    return [test for start, tests in READ_BY.items() for test in tests if _is_in(path, start)]


def _mirrored(root: Path, source: Path, tests: str) -> str:
    own = f"{tests}/{source.with_name(f'test_{source.stem}.py')}"
    if (root / own).exists():
        return own
    for room in (source.with_suffix(""), *source.parents[:-1]):
        if (root / tests / room).is_dir():
            return f"{tests}/{room}"
    return f"{tests}/test_architecture.py"


def _is_in(path: str, start: str) -> bool:
    return path == start or path.startswith(f"{start}/")


def changed_files(root: Path) -> list[str]:
    """What differs from the last commit, and what is new."""
    commands = (["diff", "--name-only", "HEAD"], ["ls-files", "--others", "--exclude-standard"])
    found: list[str] = []
    for command in commands:
        told = subprocess.run(["git", *command], cwd=root, stdout=subprocess.PIPE, check=True)
        found += told.stdout.decode().splitlines()
    return found


def main() -> None:
    root = Path(__file__).parents[1]
    parts = sys.argv[1:]
    found = named(root, parts) if parts else of_changed(root, changed_files(root))
    if not found:
        sys.exit("nothing with tests differs from the last commit; name a part: PART=routing")
    print("\n".join(found))


if __name__ == "__main__":
    main()
