"""Columns that plugins add to the table of candidates, by name and type: the producer and the
readers of one import it from here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferway.model import Column, ColumnKey

# What each engine must still compile for the shape that the request asks of its answer, in
# milliseconds; it does so while it computes the prompt. Absent if it is next to nothing.
COMPILE_MS: ColumnKey[Column] = ColumnKey("compile-ms")
# What `scheduling.expected_ttft` expects of the request on each endpoint, in milliseconds; NaN
# where nothing is known.
EXPECTED_TTFT_MS: ColumnKey[Column] = ColumnKey("expected-ttft-ms")  # to its first token
EXPECTED_TPOT_MS: ColumnKey[Column] = ColumnKey("expected-tpot-ms")  # from each token to the next
# The endpoint of the request's other stage (prefill or decode), once it is chosen: the same in each
# row, for it may be in none of them.
PEER: ColumnKey[NDArray[np.object_]] = ColumnKey("peer")
