"""`inferway ...` as a process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

INFERWAY = str(Path(sys.executable).parent / "inferway")

Start = Callable[..., "Program"]


class Program:
    """A running command; its output is read up to a line, and kept."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [INFERWAY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.output = ""

    def read_until(self, pattern: str) -> str:
        """The pattern's first group, once it has been printed."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if match := re.search(pattern, line):
                return match[1]
        raise AssertionError(f"ended without {pattern!r}:\n{self.output}")

    def ends(self) -> int:
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        return self.process.wait(timeout=30)
