"""The page's rows, of one engine and of one request."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from inferway.telemetry.engine_rows import EngineRow
from inferway_console.page.engine_times import Times
from inferway_console.records.record import Miss, RequestRecord


class PageRow(EngineRow, frozen=True, kw_only=True):
    """An engine's row, and what its answers of late took."""

    times: Times | None  # None: it has had none


class RequestRow(msgspec.Struct, frozen=True):
    """A request that has ended, in one line. `seq` is the number of its record."""

    seq: int
    id: str
    at: float
    model: str
    chosen: str
    streamed: bool
    prompt_tokens: int
    prompt_blocks: int
    block_size: int
    reachable_blocks: int
    chosen_blocks: int
    delivered_tokens: int
    missed: Sequence[Miss]
    expected_ttft_ms: float
    ttft_ms: float
    total_ms: float
    status: int
    outcome: str
    reason: str


def page_row(row: EngineRow, times: Times | None) -> PageRow:
    """Return the engine's row with the times of its answers."""
    fields = {name: getattr(row, name) for name in EngineRow.__struct_fields__}
    return PageRow(**fields, times=times)


def request_row(seq: int, record: RequestRecord) -> RequestRow:
    """Return the line of a record."""
    told = {name: getattr(record, name) for name in RequestRow.__struct_fields__ if name != "seq"}
    return RequestRow(seq=seq, **told)
