"""How many requests of an engine have not begun to answer: those that wait, and those whose prompts
it computes.

An engine's gauges count the latter as running, like those that it writes answers of. But its
counters tell them apart: of the requests that it has (running + waiting), those that have had their
first token and not ended are firsts - ended. What counters have counted before we looked, and
requests that end without being counted (aborted ones, vLLM 0.32), make that off by a number which
changes seldom; it is known whenever the engine has nothing to do, and is kept such that the answer
is never less than what waits, nor more than there is, nor more than that all the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

WINDOW = 300  # scrapes; in so many, an engine has computed all prompts that it had at some time


@dataclass(slots=True)
class Unbegun:
    """Of one endpoint. `told` is called with each scrape."""

    _off: float | None = None
    _least: float = inf  # of those that did not wait, in this window
    _seen: int = 0  # scrapes of it

    def told(self, running: float, waiting: float, answering: float | None) -> float:
        """`answering`: firsts - ended, None where they are not told; then -1 is returned."""
        if answering is None:
            return -1.0
        found = running + waiting - answering
        if self._off is None:
            self._off = found - waiting  # as if all that run were answering
        self._off = min(max(self._off, found - running - waiting), found - waiting)
        answer = found - self._off
        self._least = min(self._least, answer - waiting)
        self._seen += 1
        if self._seen == WINDOW:
            self._off += self._least
            answer -= self._least
            self._least, self._seen = inf, 0
        return answer
