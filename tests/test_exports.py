"""What `import inferway` offers."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import inferway

SOURCE = Path(inferway.__file__).read_text()


@pytest.mark.parametrize("name", inferway.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(inferway, name) is not None
    assert name in dir(inferway)


def test_type_checkers_see_what_is_loaded_on_first_use() -> None:
    """They follow imports, and know nothing of `__getattr__`."""
    seen = {
        alias.asname: node.module
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("inferway.")
        for alias in node.names
    }

    assert set(seen) == set(inferway.__all__) - {"__version__"}
    for name, module in seen.items():
        assert module is not None
        assert getattr(importlib.import_module(module), str(name)) is getattr(inferway, str(name))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'inferway' has no attribute 'Nothing'"):
        _ = inferway.Nothing
