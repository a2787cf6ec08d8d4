"""The load columns of all endpoints; row i belongs to holder i. Written by `fleet.Fleet` alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferway.model import Column

_COLUMNS = ("in_flight", "others", "waiting", "kv_usage", "recent_tokens")


@dataclass(slots=True)
class LoadColumns:
    """See `model.Candidates` for what each says."""

    in_flight: Column = field(default_factory=lambda: np.zeros(0))
    others: Column = field(default_factory=lambda: np.zeros(0))
    waiting: Column = field(default_factory=lambda: np.zeros(0))
    kv_usage: Column = field(default_factory=lambda: np.zeros(0))
    recent_tokens: Column = field(default_factory=lambda: np.zeros(0))

    def grow(self, rows: int) -> None:
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(rows - len(column))]))


# Rows of the columns. A slice, where it is one, gives views and costs a tenth.
Rows = slice | NDArray[np.intp]


def rows_of(holders: Sequence[int]) -> Rows:
    first, last = holders[0], holders[-1]
    if list(holders) == list(range(first, last + 1)):
        return slice(first, last + 1)
    return np.array(holders, dtype=np.intp)
