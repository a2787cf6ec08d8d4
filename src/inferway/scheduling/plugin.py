"""What a filter, a scorer and a picker are.

The law for all three: they read the candidates and nothing else. A new fact is a new column,
never a lookup from in here; that keeps them pure, and a test of one is a table.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferway.model import Candidates, Column, Target


class Chooser(Protocol):
    """Candidates in, ranked targets out: a profile, or something simpler."""

    def choose(self, candidates: Candidates) -> tuple[Target, ...]:
        """The targets, best first; raises NoEndpointError."""


class Filter(Protocol):
    """Narrows the candidates."""

    def keep(self, candidates: Candidates) -> NDArray[np.bool_]:
        """True for each row that may serve the request."""


class Scorer(Protocol):
    """Rates the candidates."""

    def score(self, candidates: Candidates) -> Column:
        """A rating in [0, 1] for each row; 1 is best."""


class Picker(Protocol):
    """Orders the rated candidates."""

    def pick(self, scores: Column, count: int) -> list[int]:
        """At most `count` row numbers, the first choice first."""
