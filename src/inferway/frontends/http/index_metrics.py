"""What /metrics shows of the index, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import SummaryMetricFamily

from inferway.fleet.engine import Engine
from inferway.frontends.http.families import Family, counter, gauge
from inferway.index.protocol import Index
from inferway.index.report import SharedReport


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
        "index_bytes", "Memory that the index takes in this process, about.", value=report.num_bytes
    )
    yield counter("index_evicted", "Blocks dropped for want of room.", value=report.evicted)
    yield from _shared(report.shared)


def _shared(report: SharedReport | None) -> Iterator[Family]:
    def of(value: Callable[[SharedReport], float]) -> float | None:
        return None if report is None else value(report)

    yield gauge("index_away", "1 while its server is away.", value=of(lambda r: r.is_away))
    yield counter(
        "index_outages", "Times that its server went away.", value=of(lambda r: r.outages)
    )
    yield counter("index_matches", "Matches asked of its server.", value=of(lambda r: r.matches))
    yield counter("index_late", "Matches not answered in time.", value=of(lambda r: r.late))
    yield counter("index_refused", "Matches failed or not tried.", value=of(lambda r: r.refused))
    seconds = SummaryMetricFamily(
        "inferway_index_match_seconds", "Round trips of matches that were answered."
    )
    if report is not None:
        seconds.add_metric([], report.answered, report.answer_seconds)
    yield seconds
    yield gauge("index_leases", "Engines and ranks that we write.", value=of(lambda r: r.leases))
    yield gauge(
        "index_pending_keys", "Keys that wait to be written.", value=of(lambda r: r.pending_keys)
    )
    yield counter("index_written_keys", "Keys written.", value=of(lambda r: r.written_keys))
    yield counter(
        "index_pictures",
        "Times that an engine was written from scratch.",
        value=of(lambda r: r.pictures),
    )
    yield counter(
        "index_fenced",
        "Batches refused: another gateway had taken over.",
        value=of(lambda r: r.fenced),
    )
    yield counter(
        "index_repairs", "Times that its server had lost something.", value=of(lambda r: r.repairs)
    )
