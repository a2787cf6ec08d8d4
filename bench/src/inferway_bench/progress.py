"""How a benchmark tells what is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

OnStep = Callable[[str], None]


class OnCountedStep(Protocol):
    """With how much of it is done, where that is known."""

    def __call__(self, what: str, done: int | None = None, total: int | None = None) -> None: ...
