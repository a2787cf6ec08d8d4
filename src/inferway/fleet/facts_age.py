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
    num_same: int = 0  # so many times in a row it told the same, though it had worked

    def are_due(self, now: float) -> bool:
        """Return whether it must be asked for all again: ever more seldom while it works and tells
        the same, and MOST_SECONDS later at last."""
        if self.asked is None:
            return True
        doubled = FIRST_SECONDS * 2**self.num_same if self.has_worked else MOST_SECONDS
        return now - self.asked > min(MOST_SECONDS, doubled)

    def told(self, asked: float, *, is_same: bool) -> None:
        """It has told all, and the same as before or not."""
        worked, self.has_worked = self.has_worked, False
        self.num_same = self.num_same + worked if is_same else 0
        self.asked = asked
