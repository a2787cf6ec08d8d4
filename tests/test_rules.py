"""The rules of CONTRIBUTING.md that a program can check, in all three distributions.

Each exception is listed here. A list may only become shorter: an entry that no longer applies fails
the test as well.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILDINGS = {
    "inferway": ROOT / "src",
    "inferway_structured": ROOT / "structured" / "src" / "inferway_structured",
    "inferway_bench": ROOT / "bench" / "src" / "inferway_bench",
}

MAX_FILE_LINES = 600  # what a file brings along is limited instead: tests/budgets
MAX_FUNCTION_LINES = 60
MAX_NESTING = 3
SUFFIXES = ("Manager", "Handler", "Helper", "Util", "Base", "Impl")

# Functions that nest deeper than MAX_NESTING: "file function".
NESTED = {
    "inferway": """
        inferway/prompts/body_size.py body_size
        inferway/prompts/chat/content_format.py _names_of_messages
        inferway/prompts/files/model_processes.py check
        inferway/prompts/tokenizer/tokenizer_bounds.py check_expansion
        inferway/prompts/tokenizer/tokenizer_bounds.py unbounded_regex
        inferway_sim/demo/run.py _scored
    """,
    "inferway_structured": """
        backends/cascade.py _schema_said
        validate/schema_walk.py _circles
        validate/schema_walk.py _grow
        validate/schema_walk.py graph
        validate/schemas.py _check_counts
    """,
    "inferway_bench": "",
}

# Classes whose name ends with one of SUFFIXES.
SUFFIXED = {
    "inferway": {"ProfileHandler"},
    "inferway_structured": set[str](),
    "inferway_bench": set[str](),
}

# Class names that more than one file of a distribution defines. The simulator has the same names
# as the gateway for what vLLM sends (BlockStored, …): it writes what the gateway reads.
DEFINED_TWICE = {
    "inferway": "AllBlocksCleared BlockRemoved BlockStored",
    "inferway_structured": "",
    "inferway_bench": "ChatSpec",
}

_NESTS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources(building: str) -> dict[str, str]:
    """Each file's path below its distribution, and its text."""
    root = BUILDINGS[building]
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*.py"))}


@dataclass(frozen=True)
class Defined:
    """What a distribution defines: functions as (file, name, lines, blocks that the deepest
    statement lies in), classes as (file, name)."""

    functions: list[tuple[str, str, int, int]]
    classes: list[tuple[str, str]]


@cache
def defined(building: str) -> Defined:
    found = Defined([], [])
    for path, text in sources(building).items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.functions.append((path, node.name, num_lines(node), nesting(node)))
            elif isinstance(node, ast.ClassDef):
                found.classes.append((path, node.name))
    return found


def num_lines(function: _Function) -> int:
    """The lines of its body, without its docstring."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if has_docstring else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body and body[-1].end_lineno else 0


def nesting(node: ast.AST, depth: int = 0) -> int:
    """How many blocks its deepest statement lies in; `elif` is no block of its own."""
    deepest = depth
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        is_elif = isinstance(node, ast.If) and name == "orelse" and len(children) == 1
        for child in children:
            if not isinstance(child, ast.AST) or isinstance(child, _INNER):
                continue
            nests = isinstance(child, _NESTS) and not (is_elif and isinstance(child, ast.If))
            deepest = max(deepest, nesting(child, depth + nests))
    return deepest


@pytest.mark.parametrize("building", BUILDINGS)
def test_files_are_short(building: str) -> None:
    too_long = [p for p, text in sources(building).items() if text.count("\n") > MAX_FILE_LINES]

    assert too_long == []


@pytest.mark.parametrize("building", BUILDINGS)
def test_functions_are_short(building: str) -> None:
    too_long = [each for each in defined(building).functions if each[2] > MAX_FUNCTION_LINES]

    assert too_long == []


@pytest.mark.parametrize("building", BUILDINGS)
def test_functions_nest_little(building: str) -> None:
    functions = defined(building).functions
    found = {f"{path} {name}" for path, name, _, depth in functions if depth > MAX_NESTING}

    assert found == {line.strip() for line in NESTED[building].strip().splitlines()}


@pytest.mark.parametrize("building", BUILDINGS)
def test_class_names_say_more_than_their_role(building: str) -> None:
    names = {name for _, name in defined(building).classes}

    assert {name for name in names if name.endswith(SUFFIXES)} == SUFFIXED[building]


@pytest.mark.parametrize("building", BUILDINGS)
def test_a_class_name_has_one_meaning(building: str) -> None:
    files = Counter(name for _, name in set(defined(building).classes))

    assert {name for name, num in files.items() if num > 1} == set(DEFINED_TWICE[building].split())


def test_nesting_counts_blocks_and_not_branches() -> None:
    text = "def f():\n if a:\n  for b in c:\n   pass\n elif d:\n  pass\n elif e:\n  with g:\n   h()"

    assert nesting(ast.parse(text).body[0]) == 2
