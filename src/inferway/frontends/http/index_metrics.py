"""What /metrics shows of the index, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import SummaryMetricFamily

from inferway.fleet.engine import Engine
from inferway.frontends.http.families import Family, counter, gauge
from inferway.index.protocol import Index
from inferway.index.report import SharedReport

_SHARED: tuple[tuple[Callable[..., Family], str, str, Callable[[SharedReport], float]], ...] = (
    (
        gauge,
        "index_away",
        "1 while the server of the shared index does not answer, so that requests"
        " go by load only; else 0.",
        lambda r: r.is_away,
    ),
    (
        counter,
        "index_outages",
        "Times that the server of the shared index went away.",
        lambda r: r.outages,
    ),
    (
        counter,
        "index_matches",
        "Matches that were asked of the shared index.",
        lambda r: r.matches,
    ),
    (
        counter,
        "index_late",
        "Matches that were given up because the shared index did not answer in time.",
        lambda r: r.late,
    ),
    (
        counter,
        "index_refused",
        "Matches that failed, or were not tried, because the server of the shared index was away.",
        lambda r: r.refused,
    ),
    (
        gauge,
        "index_leases",
        "Engines and ranks that this gateway writes to the shared index.",
        lambda r: r.leases,
    ),
    (
        gauge,
        "index_pending_keys",
        "Keys that wait to be written to the shared index.",
        lambda r: r.pending_keys,
    ),
    (
        counter,
        "index_written_keys",
        "Keys that were written to the shared index.",
        lambda r: r.written_keys,
    ),
    (
        counter,
        "index_pictures",
        "Times that all blocks of an engine were written to the shared index again.",
        lambda r: r.pictures,
    ),
    (
        counter,
        "index_fenced",
        "Batches that the shared index refused because another gateway had taken over the engine.",
        lambda r: r.fenced,
    ),
    (
        counter,
        "index_repairs",
        "Times that the blocks of an engine were written again because the shared index had lost"
        " entries.",
        lambda r: r.repairs,
    ),
)


def index_families(index: Index, engines: Sequence[Engine]) -> Iterator[Family]:
    """The names are always the same; without a shared index some of them have no values."""
    yield gauge(
        "index_blocks",
        "Blocks that the engine is believed to hold.",
        ["engine"],
        {(e.name,): sum(index.num_blocks(p.holder) for p in e.endpoints) for e in engines},
    )
    report = index.report()
    yield gauge(
        "index_bytes",
        "Bytes of memory that the index takes in this process, approximately.",
        value=report.num_bytes,
    )
    yield counter(
        "index_evicted",
        "Blocks that the index dropped because it was full, counted once for each engine that"
        " holds them.",
        value=report.evicted,
    )
    yield from _shared(report.shared)


def _shared(report: SharedReport | None) -> Iterator[Family]:
    for kind, name, text, value in _SHARED:
        yield kind(name, text, value=None if report is None else value(report))
    seconds = SummaryMetricFamily(
        "inferway_index_match_seconds",
        "Seconds that the shared index took for the matches that it answered, the"
        " network included.",
    )
    if report is not None:
        seconds.add_metric([], report.answered, report.answer_seconds)
    yield seconds
