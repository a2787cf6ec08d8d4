"""The candidates that filters leave."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.model import Candidates, Endpoint, HolderId
from inferway.scheduling.adapter_rows import adapter_rows

MOST_REMEMBERED = 64


class _Left(NamedTuple):
    before: Sequence[Endpoint]  # that was narrowed; while it is kept, no other has its id
    at: NDArray[np.intp]  # rows of it
    endpoints: Sequence[Endpoint]
    rows: Mapping[HolderId, int]


@dataclass(slots=True)
class Narrowing:
    """Remembers which endpoints were left. Most filters leave the same ones again and again, and
    what plugins remember of a list of endpoints (OfEndpoints) holds for the same list only."""

    _left: OrderedDict[tuple[int, bytes], _Left] = field(default_factory=OrderedDict)

    def kept(self, candidates: Candidates, keep: NDArray[np.bool_]) -> Candidates:
        """`candidates` themselves if all are kept."""
        if np.count_nonzero(keep) == len(keep):
            return candidates
        key = (id(candidates.endpoints), keep.tobytes())
        left = self._left.get(key)
        if left is None:
            left = self._left[key] = _left(candidates.endpoints, keep)
            if len(self._left) > MOST_REMEMBERED:
                self._left.popitem(last=False)
        adapters = adapter_rows(candidates.adapters).narrowed(left.at)
        return candidates.narrowed(left.at, left.endpoints, left.rows, adapters)


def _left(before: Sequence[Endpoint], keep: NDArray[np.bool_]) -> _Left:
    at = keep.nonzero()[0]
    endpoints = [before[row] for row in at.tolist()]
    return _Left(before, at, endpoints, {each.holder: row for row, each in enumerate(endpoints)})
