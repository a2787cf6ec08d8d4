"""Candidates from nothing: for whom there is no fleet (benchmarks, simulations, tests)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferway.model import EXACT, FIGURES, Adapters, Candidates, Endpoint
from inferway.scheduling.adapter_rows import AdapterRows


def idle(endpoints: Sequence[Endpoint], block_size: int) -> Candidates:
    """Return endpoints with nothing to do that hold nothing, known exactly. Each column is an array
    of its own."""
    size = len(endpoints)
    columns: dict[str, Any] = {
        name: np.full(size, each.unknown, each.kind) for name, each in FIGURES.items()
    }
    columns["block_sizes"][:] = columns["cuts"][:] = block_size
    columns["states"][:] = EXACT
    rows = {endpoint.holder: row for row, endpoint in enumerate(endpoints)}
    return Candidates(endpoints, rows, AdapterRows([Adapters()] * size), **columns)
