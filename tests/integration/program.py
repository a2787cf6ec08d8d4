"""`inferway ...` as a process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from tests.fork_server import fork_server

Start = Callable[..., "Program"]


class Program:
    """A running command; its output is read up to a line, and kept."""

    def __init__(self, *arguments: str) -> None:
        ours, theirs = os.pipe()
        try:
            output = f"/proc/{os.getpid()}/fd/{theirs}"
            self.process = fork_server().start(arguments, os.environ, output)
        finally:
            os.close(theirs)
        self._stdout = os.fdopen(ours)
        self.output = ""

    def read_until(self, pattern: str) -> str:
        """The pattern's first group, once it has been printed."""
        for line in self._stdout:
            self.output += line
            if match := re.search(pattern, line):
                return match[1]
        raise AssertionError(f"ended without {pattern!r}:\n{self.output}")

    def ends(self) -> int:
        self.output += self._stdout.read()
        self._stdout.close()
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        """As far as it runs."""
        self.process.kill()
        self._stdout.close()
        self.process.wait()
