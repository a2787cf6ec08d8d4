from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from inferway_structured.vllm.fit import Patch, misfits

MODULE = "a_module_to_patch"


@pytest.fixture
def module() -> Iterator[ModuleType]:
    made = ModuleType(MODULE)

    def greet(name: str, loudly: bool = False) -> str:
        return name.upper() if loudly else name

    made.greeter = SimpleNamespace(greet=greet)  # type: ignore[attr-defined]
    sys.modules[MODULE] = made
    yield made
    del sys.modules[MODULE]


def patch(*parameters: str, path: str = "greeter.greet", module: str = MODULE) -> Patch:
    return Patch(module, path, parameters, lambda original: lambda name: f"hello {original(name)}")


@pytest.mark.usefixtures("module")
def test_a_function_that_begins_as_it_should_fits() -> None:
    assert patch("name").misfit() is None
    assert misfits([patch("name", "loudly")]) == []


@pytest.mark.usefixtures("module")
def test_other_parameters_are_named() -> None:
    assert misfits([patch("who")]) == [
        f"{MODULE}.greeter.greet has the parameters (name, loudly), and the plugin knows it with "
        "(who, ...)"
    ]


@pytest.mark.usefixtures("module")
def test_what_is_not_there_does_not_fit() -> None:
    assert "no attribute 'part'" in str(patch("name", path="greeter.part").misfit())
    assert "No module named" in str(patch("name", module="nowhere").misfit())


def test_a_patch_wraps_once_and_fits_afterwards(module: ModuleType) -> None:
    for _ in range(2):
        assert patch("name").misfit() is None
        patch("name").apply()

    assert module.greeter.greet("you") == "hello you"


def test_what_is_only_looked_at_stays(module: ModuleType) -> None:
    before = module.greeter.greet

    Patch(MODULE, "greeter.greet", ("name",), None).apply()

    assert module.greeter.greet is before
