"""When an engine must be asked anew for all that it is. What it serves, and whether it is well, is
asked for more often.

What the rest of it tells comes with its start, but for metrics that it has only once it has worked.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SECONDS = 10.0  # once it has worked
MOST_SECONDS = 300.0


@dataclass(slots=True)
class FactsAge:
    """Of what one engine has told. Times in seconds, by any clock."""

    asked: float | None = None  # None: it may be another engine by now
    has_worked: bool = False  # since then
    holds: float = FIRST_SECONDS  # for so long, once it has worked

    def are_due(self, now: float) -> bool:
        """Return whether it must be asked for all again: ever more seldom while it works and tells
        the same, and MOST_SECONDS later at last."""
        if self.asked is None:
            return True
        return now - self.asked > (self.holds if self.has_worked else MOST_SECONDS)

    def told(self, asked: float, *, is_same: bool) -> None:
        """It has told all, and the same as before or not."""
        if not is_same:
            self.holds = FIRST_SECONDS
        elif self.has_worked:
            self.holds = min(MOST_SECONDS, 4 * self.holds)
        self.asked, self.has_worked = asked, False
