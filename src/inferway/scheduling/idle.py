"""Candidates from nothing: for whom there is no fleet (benchmarks, simulations, tests)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferway.model import EXACT, Adapters, Candidates, Endpoint
from inferway.scheduling.adapter_rows import AdapterRows


def idle(endpoints: Sequence[Endpoint], block_size: int) -> Candidates:
    """Endpoints with nothing to do that hold nothing, known exactly. Each column is an array of its
    own."""
    size = len(endpoints)
    return Candidates(
        endpoints=endpoints,
        rows={endpoint.holder: row for row, endpoint in enumerate(endpoints)},
        adapters=AdapterRows([Adapters()] * size),
        block_sizes=np.full(size, block_size, np.int64),
        states=np.full(size, EXACT, np.int8),
        in_flight=np.zeros(size),
        others=np.zeros(size),
        running=np.zeros(size),
        waiting=np.zeros(size),
        kv_usage=np.zeros(size),
        unbegun=np.full(size, -1.0),
        recent_tokens=np.zeros(size),
        matched_blocks=np.zeros(size),
        matched_value=np.zeros(size),
        prompt_blocks=np.zeros(size),
    )
