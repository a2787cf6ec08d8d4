"""The candidates that filters leave."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferway.model import Candidates, Endpoint

MOST_REMEMBERED = 64


@dataclass(slots=True)
class Narrowing:
    """Remembers which endpoints were left. Most filters leave the same ones again and again, and
    what plugins remember of a list of endpoints (OfEndpoints) holds for the same list only."""

    # The list that was narrowed is kept too: while it is, no other has its id.
    _left: OrderedDict[tuple[int, bytes], tuple[Sequence[Endpoint], Sequence[Endpoint]]] = field(
        default_factory=OrderedDict
    )

    def kept(self, candidates: Candidates, keep: NDArray[np.bool_]) -> Candidates:
        """`candidates` themselves if all are kept."""
        if np.count_nonzero(keep) == len(keep):
            return candidates
        rows = keep.nonzero()[0]
        before = candidates.endpoints
        key = (id(before), keep.tobytes())
        found = self._left.get(key)
        if found is None:
            found = self._left[key] = (before, [before[row] for row in rows.tolist()])
            if len(self._left) > MOST_REMEMBERED:
                self._left.popitem(last=False)
        return candidates.narrowed(rows, found[1])
