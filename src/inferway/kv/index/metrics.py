"""What /metrics shows of the index, whichever it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import SummaryMetricFamily

from inferway.metrics import Family, counter, gauge

# Of an index that gateways share: how its server does, and what this gateway does there.
_SHARED = (
    (
        gauge,
        "index_away",
        "1 while the server of the shared index does not answer, so that requests"
        " go by load only; else 0.",
    ),
    (counter, "index_outages", "Times that the server of the shared index went away."),
    (counter, "index_matches", "Matches that were asked of the shared index."),
    (
        counter,
        "index_late",
        "Matches that were given up because the shared index did not answer in time.",
    ),
    (
        counter,
        "index_refused",
        "Matches that failed, or were not tried, because the server of the shared index was away.",
    ),
    (gauge, "index_leases", "Engines and ranks that this gateway writes to the shared index."),
    (gauge, "index_pending_keys", "Keys that wait to be written to the shared index."),
    (counter, "index_written_keys", "Keys that were written to the shared index."),
    (
        counter,
        "index_pictures",
        "Times that all blocks of an engine were written to the shared index again.",
    ),
    (
        counter,
        "index_fenced",
        "Batches that the shared index refused because another gateway had taken over the engine.",
    ),
    (
        counter,
        "index_repairs",
        "Times that the blocks of an engine were written again because the shared index had lost"
        " entries.",
    ),
)


def index_families(
    num_bytes: int,
    evicted: int = 0,
    shared: Mapping[str, float] | None = None,
    answers: tuple[int, float] | None = None,
) -> Iterator[Family]:
    """Yield the same names for every index; without a shared one some of them have no values.
    `shared`: by name. `answers`: how many matches were answered, and their seconds in all."""
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
    for kind, name, text in _SHARED:
        yield kind(name, text, value=None if shared is None else shared[name])
    seconds = SummaryMetricFamily(
        "inferway_index_match_seconds",
        "Seconds that the shared index took for the matches that it answered, the"
        " network included.",
    )
    if answers is not None:
        seconds.add_metric([], *answers)
    yield seconds
