"""A checkout is complete: no path in it leads out of it, whatever lies beside it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WALKED = ("src", "structured", "bench", "tests", "scripts", "docs", "deploy", "Makefile",
          ".ci/run", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml")  # fmt: skip
THIS = Path(__file__).relative_to(ROOT)
# Of a sentence or a program: where it begins, and no part of a longer path, URL or query.
UPWARD = re.compile(r"(?<![\w./=])(?:\.\./)+[\w][\w./-]*")
# What was beside the checkout once, and folders of a machine on which results were measured.
OUTSIDE = re.compile(r"\bshared/data\b|/work/|(?<!\w)/root/(?!\.cache/)")
WRITTEN = frozenset({"tests/fuzz/found"})  # paths that modules name because they make them
MADE = re.compile(r"^(__pycache__|node_modules|.*\.egg-info)$")  # by a run; git ignores them
WRITES_PAGES, PAGES = Path("bench/src/inferway_bench"), Path("docs/benchmarks")
DIRNAME = re.compile(r"dirname \"?\$\{?(?:BASH_SOURCE\[0\]|0)\}?\"?\)((?:/\.\.)*)")


@cache
def walked() -> list[Path]:
    """Files, relative to the root."""
    files = [ROOT / name for name in WALKED if (ROOT / name).is_file()]
    for name in WALKED:
        for folder, folders, found in os.walk(ROOT / name):
            folders[:] = [each for each in folders if not MADE.search(each)]
            files += [Path(folder) / each for each in found]
    return sorted(path.relative_to(ROOT) for path in files if path.relative_to(ROOT) != THIS)


@cache
def texts() -> dict[Path, str]:
    """Those that are text."""
    found = {}
    for path in walked():
        data = (ROOT / path).read_bytes()
        if b"\0" not in data:
            found[path] = data.decode()
    return found


def is_within(path: str) -> bool:
    """Of a path relative to the root, without a look at the disk."""
    return os.path.normpath(path).split("/")[0] != ".." and not path.startswith("/")


def leads_inside(folder: Path, found: str) -> bool:
    """To something that is there, from a folder of the checkout."""
    return is_within(f"{folder}/{found}") and (ROOT / folder / found.rstrip(".")).exists()


def test_what_was_beside_the_checkout_is_named_nowhere() -> None:
    named = [
        f"{path}:{number}: {line[:100]}"
        for path, text in texts().items()
        if OUTSIDE.search(text)
        for number, line in enumerate(text.splitlines(), start=1)
        if OUTSIDE.search(line)
    ]

    assert named == []


def test_no_test_reads_what_another_run_has_downloaded() -> None:
    """On a fresh machine the folder of downloads is empty; who needs it asks `cache_dir`."""
    named = [path for path, text in texts().items() if path.parts[0] == "tests" and "~/.c" in text]

    assert [path for path in named if path.suffix == ".py"] == []


def test_paths_that_lead_upward_end_at_something_in_the_checkout() -> None:
    outside = [
        f"{path}: {found}"
        for path, text in texts().items()
        if "../" in text
        for found in UPWARD.findall(text)
        if not leads_inside(PAGES if path.is_relative_to(WRITES_PAGES) else path.parent, found)
    ]

    assert outside == []


def test_scripts_do_not_leave_the_root() -> None:
    outside = [
        f"{path}: {found}"
        for path, text in texts().items()
        for found in DIRNAME.findall(text)
        if not is_within(f"{path.parent}{found}")
    ]

    assert outside == []


def test_no_link_in_the_tree_leads_outside() -> None:
    links = [path for path in walked() if (ROOT / path).is_symlink()]

    assert [p for p in links if not is_within(f"{p.parent}/{(ROOT / p).readlink()}")] == []


def test_no_expression_of_a_program_climbs_above_the_root() -> None:
    outside = [
        f"{path}:{line}: {place}"
        for path in texts()
        if path.suffix == ".py"
        for line, place in Places(path).found()
        if not is_within(place)
    ]

    assert outside == []


def test_paths_that_modules_name_are_there() -> None:
    missing = [
        f"{path}: {name} = {place}"
        for path in texts()
        if path.suffix == ".py"
        for name, place in Places(path).names.items()
        if is_within(place) and not (ROOT / place).exists() and place not in WRITTEN
    ]

    assert missing == []


@pytest.mark.parametrize(
    ("expression", "place"),
    [
        ("Path(__file__)", "tests/a/b.py"),
        ("Path(__file__).parents[1]", "tests"),
        ("Path(__file__).resolve().parent.parent / 'x' / 'y.z'", "tests/x/y.z"),
        ("os.path.join(os.path.dirname(os.path.dirname(__file__)), '..', 'x')", "x"),
        ("Path(__file__).parents[3] / 'x'", "../x"),
        ("(HERE / '..').joinpath('..', '..') / 'x'", "../x"),
        ("Path('x').parents[9]", None),
        ("Path(__file__).parents[number]", None),
    ],
)
def test_places_are_worked_out(expression: str, place: str | None) -> None:
    tree = ast.parse(expression, mode="eval")

    assert place_of(tree.body, "tests/a/b.py", {"HERE": "tests/a"}) == place


class Places:
    """Where the expressions of a file lead, relative to the root: those that begin at the file
    itself, directly, by a name of its module or by one of another module of ours."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        text = (ROOT / path).read_text()
        self._says_file = "__file__" in text
        begins_somewhere = self._says_file or "from tests." in text
        self._tree = ast.parse(text if begins_somewhere else "")
        self._names = dict(self._imported())
        for node in self._tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                place = place_of(node.value, self._path, self._names)
                if place is not None:
                    self._names[node.targets[0].id] = place

    @property
    def names(self) -> dict[str, str]:
        return self._names

    def found(self) -> Iterator[tuple[int, str]]:
        if not self._says_file and not self._names:
            return  # nothing that a path could begin with
        for node in ast.walk(self._tree):
            if isinstance(node, ast.expr):
                place = place_of(node, self._path, self._names)
                if place is not None:
                    yield node.lineno, place

    def _imported(self) -> Iterator[tuple[str, str]]:
        for node in self._tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                places = _places_of_module(node.module)
                for alias in node.names:
                    if alias.name in places:
                        yield alias.asname or alias.name, places[alias.name]


@cache
def _places_of_module(module: str) -> dict[str, str]:
    if not module.startswith("tests."):
        return {}
    path = Path(*module.split(".")).with_suffix(".py")
    return Places(path).names if (ROOT / path).is_file() else {}


def place_of(node: ast.expr, file: str, names: dict[str, str]) -> str | None:
    """The path that an expression stands for, None where it does not begin at the file or is more
    than a fixed path."""

    def base(inner: ast.expr) -> str | None:
        return place_of(inner, file, names)

    match node:
        case ast.Name(id="__file__"):
            return file
        case ast.Name(id=name):
            return names.get(name)
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=str(part))):
            return _joined(base(left), part)
        case ast.Attribute(value=inner, attr="parent"):
            return _up(base(inner), 1)
        case ast.Subscript(
            value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=int(levels))
        ):
            return _up(base(inner), levels + 1)
        case ast.Call(func=ast.Attribute(value=inner, attr=called), args=arguments):
            return _called(base(inner), called, arguments, base)
        case ast.Call(func=ast.Name(id="Path" | "str"), args=[inner]):
            return base(inner)
    return None


def _called(
    place: str | None,
    called: str,
    arguments: list[ast.expr],
    base: Callable[[ast.expr], str | None],
) -> str | None:
    """Of a method of a path, or of a function of os.path (then `place` is None)."""
    if place is None:  # of os.path, whose functions take the path first
        place, arguments = (base(arguments[0]), arguments[1:]) if arguments else (None, [])
    parts = [str(a.value) for a in arguments if isinstance(a, ast.Constant)]
    match called:
        case "resolve" | "absolute" | "abspath" | "realpath" | "normpath":
            return place
        case "dirname":
            return _up(place, 1)
        case "with_name" if len(parts) == 1:
            return _joined(_up(place, 1), parts[0])
        case "join" | "joinpath" if len(parts) == len(arguments):
            return _joined(place, *parts)
    return None


def _up(place: str | None, levels: int) -> str | None:
    return _joined(place, *[".."] * levels)


def _joined(place: str | None, *parts: str) -> str | None:
    return None if place is None else os.path.normpath("/".join([place, *parts]))
