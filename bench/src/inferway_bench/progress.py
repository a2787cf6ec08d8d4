"""How a benchmark tells what is under way, and how the terminal shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


OnStep = Callable[..., None]
"""Called with what is under way, and how much of it is done, and of how much, where that is known:
`on_step("short chat")`, `on_step("requests", 35, 100)`."""


@contextmanager
def shown_progress() -> Iterator[OnStep]:
    """Show on standard error what is under way, if that is a terminal. Nothing is drawn between two
    calls: a thread that draws would take time from what is measured."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TimeElapsedColumn(), BarColumn(20), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as shown:
        yield _StepBar(shown)


class _StepBar:
    """Counts as it is told, or as the words say it (`short chat: round_robin, 3 of 7`)."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._task = shown.add_task("starting", total=None)

    def __call__(self, what: str, done: int | None = None, total: int | None = None) -> None:
        counted = re.search(r"([\d,]+) of ([\d,]+)", what)
        if total is None and counted is not None:
            done, total = (int(number.replace(",", "")) for number in counted.groups())
        self._shown.update(
            self._task, description=what, completed=done or 0, total=total, refresh=True
        )
