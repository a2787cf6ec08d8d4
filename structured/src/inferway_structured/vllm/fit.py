"""Patches, and whether they fit: a function of vLLM's is replaced only while its parameters are
those that we know."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Patch:
    """A replacement of one of vLLM's functions: `wrap(original)` takes the place of the function
    `name` of `owner`. `parameters` are the names that the original's signature must begin with;
    None if any will do."""

    module: str  # "vllm.v1.structured_output"
    path: str  # "StructuredOutputManager.grammar_init"
    parameters: Sequence[str] | None
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None  # None: only looked at

    def misfit(self) -> str | None:
        """Return why this vLLM is not the one the patch was made for; None if it is."""
        try:
            original = getattr(*self._owner_and_name())
        except (ImportError, AttributeError) as e:
            return f"{self.module}.{self.path} cannot be found ({e})"
        if self.parameters is None:
            return None
        unpatched = getattr(original, "inferway_original", original)
        found = list(inspect.signature(unpatched).parameters)
        if found[: len(self.parameters)] == list(self.parameters):
            return None
        return (
            f"{self.module}.{self.path} has the parameters ({', '.join(found)}), and the plugin "
            f"knows it with ({', '.join(self.parameters)}, ...)"
        )

    def apply(self) -> None:
        """Put the patch in its place. A second time it changes nothing."""
        if self.wrap is None:
            return
        owner, name = self._owner_and_name()
        original = getattr(owner, name)
        if hasattr(original, "inferway_original"):
            return
        patched = functools.wraps(original)(self.wrap(original))
        patched.inferway_original = original  # type: ignore[attr-defined]
        setattr(owner, name, patched)

    def _owner_and_name(self) -> tuple[Any, str]:
        owner: Any = importlib.import_module(self.module)
        *outer, name = self.path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        return owner, name


@dataclass(frozen=True, slots=True)
class Feature:
    """Patches that belong together: either all of them are applied, or none."""

    name: str
    patches: Sequence[Patch]


def vllm_version() -> tuple[int, int]:
    """Return major and minor version. A build without a release's number counts as newer than
    all."""
    import vllm

    words = vllm.__version__.split(".")
    try:
        version = (int(words[0]), int(words[1]))
    except (IndexError, ValueError):
        return _NEWEST
    return version if version >= (0, 2) else _NEWEST  # "0.1.dev…"


_NEWEST = (1_000_000, 0)


def switch_threads_sooner() -> None:
    """Have a thread that waits for the GIL beside a busy one get it after 0.5 ms, not 5 ms."""
    sys.setswitchinterval(5e-4)


def misfits(patches: Sequence[Patch]) -> list[str]:
    return [why for patch in patches if (why := patch.misfit()) is not None]
