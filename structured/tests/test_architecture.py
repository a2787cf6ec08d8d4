"""What an engine installs: nothing of the gateway, and no import circles."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "structured" / "src"
PACKAGE = "inferway_structured"
MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SRC / PACKAGE).rglob("*.py"))
}

# What the package and its extras bring, and what every engine has.
LIBRARIES = {
    *(PACKAGE, "msgspec", "numpy", "llguidance", "jsonschema_rs"),
    *("vllm", "torch", "transformers", "xgrammar", "starlette", "prometheus_client"),
}
PURE = [
    *("spec", "requests", "lax", "decoding", "report", "sse", "answers"),
    *("texts", "explain", "compile.cost"),
    *(
        f"validate.{name}"
        for name in (
            *("check", "limits", "regexes", "schema_walk", "schemas", "json_schema_drafts"),
            *("ebnf", "keywords"),
        )
    ),
]
FORBIDDEN_IN_PURE = {"asyncio", "socket", "threading", "time"}


def imports(node: ast.AST) -> Iterator[str]:
    """Of a module or a part of it, wherever they stand, but for those of type checkers alone."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.If) and ast.unparse(inner.test) == "TYPE_CHECKING":
            continue
        if isinstance(inner, ast.Import):
            yield from (alias.name for alias in inner.names)
        elif isinstance(inner, ast.ImportFrom):
            assert inner.level == 0, "relative import"
            assert inner.module is not None
            for alias in inner.names:
                whole = f"{inner.module}.{alias.name}"
                yield whole if whole in MODULES else inner.module
        else:
            yield from imports(inner)


def imports_of(name: str) -> set[str]:
    return set(imports(ast.parse(MODULES[name].read_text())))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_what_an_engine_has(name: str) -> None:
    found = {imported.split(".")[0] for imported in imports_of(name)}

    assert found - set(sys.stdlib_module_names) <= LIBRARIES


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: {one for one in imports_of(name) if one in MODULES} for name in MODULES}

    assert list(TopologicalSorter(graph).static_order())  # raises CycleError, with the circle


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_know_no_clock_socket_or_thread(name: str) -> None:
    found = {imported.split(".")[0] for imported in imports_of(f"{PACKAGE}.{name}")}

    assert not found & FORBIDDEN_IN_PURE


def test_versions_go_together() -> None:
    ours, gateway = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for folder in (ROOT / "structured", ROOT)
    )

    assert ours["version"] == gateway["version"]
    assert f"inferway-structured=={ours['version']}" in gateway["dependencies"]
