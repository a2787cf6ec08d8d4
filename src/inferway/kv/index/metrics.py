"""Metric families of the index."""

from __future__ import annotations

from collections.abc import Iterator

from inferway.metrics import Family, counter, gauge


def index_families(num_bytes: int, evicted: int = 0) -> Iterator[Family]:
    yield gauge(
        "index_bytes",
        "Bytes of memory that the index takes in this process, approximately.",
        value=num_bytes,
    )
    yield counter(
        "index_evicted",
        "Blocks that the index dropped because it was full, counted once for each engine that"
        " holds them.",
        value=evicted,
    )
