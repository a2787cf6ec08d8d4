"""The table of budgets, `budgets.toml`: figures that may only fall.

    python -m tests.budgets.table      writes what is measured now

A change that makes a figure larger has to change the table, where a reviewer sees it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.budgets.sources import ROOT, sources

TABLE = Path(__file__).with_name("budgets.toml")
HEAD = "# Figures that may only fall: table.py writes them, and test_budgets.py checks them.\n"

Key = tuple[str, str, str]  # kind, what it is of, figure
Figures = Mapping[Key, float]


def read_table() -> Figures:
    """Return the budgets."""
    return dict(_flat(tomllib.loads(TABLE.read_text())))


@cache
def of_sources() -> Figures:
    """Return what the sources measure now."""
    return dict(_flat(sources()))


def of_requests() -> Figures:
    """Return what requests take now. It takes 10 seconds."""
    command = [sys.executable, "-m", "tests.budgets.requests"]
    printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    found = {
        what: {
            name: len(figure) if isinstance(figure, list) else round(figure)
            for name, figure in figures.items()
        }
        for what, figures in json.loads(printed).items()
    }
    return dict(_flat({"requests": found}))


def write_table(figures: Figures) -> None:
    """Make these figures the budgets."""
    text, before = HEAD, None
    for (kind, what, name), figure in figures.items():
        if (kind, what) != before:
            text += f'\n["{kind}"."{what}"]\n'
            before = kind, what
        text += f'"{name}" = {figure}\n'
    TABLE.write_text(text)


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[Key, float]]:
    for kind, each in table.items():
        for what, figures in each.items():
            for name, figure in figures.items():
                yield (kind, what, name), figure


if __name__ == "__main__":
    write_table({**of_sources(), **of_requests()})
