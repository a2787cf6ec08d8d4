"""What the page shows of requests."""

from __future__ import annotations

from inferway_console.page.pictures import request_row
from inferway_console.records.record import Miss, RequestRecord


def test_a_line_of_a_request_is_its_record_without_candidates() -> None:
    miss = Miss("evicted", 2, "at event 7")
    record = RequestRecord(id="r", at=1.0, chosen="e", missed=(miss,), ttft_ms=5.0)

    line = request_row(7, record)

    assert (line.seq, line.id, line.chosen, line.missed, line.ttft_ms) == (7, "r", "e", (miss,), 5)
    assert not hasattr(line, "candidates")
