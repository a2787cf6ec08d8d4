"""The records of the last requests, in memory, packed; they are unpacked when they are read."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from inferway_console.records.packing import (
    MOST_ID,
    MOST_NAMES,
    Names,
    PackedRow,
    RecordRow,
    decode_rows,
    encode_rows,
    record_of,
    row_of,
)
from inferway_console.records.record import MissKind, RequestRecord

DEFAULT_REQUESTS = 10_000
BYTES_A_REQUEST = 1024  # at most, on an average: a typical one has 300


@dataclass(frozen=True, slots=True)
class Page:
    """Some records, one behind the other."""

    first: int  # the number of its first record
    size: int  # records
    packed: bytes
    names: Names

    def rows(self) -> list[RecordRow]:
        return decode_rows(self.packed)

    def record(self, row: RecordRow) -> RequestRecord:
        return record_of(row, self.names)

    def records(self, start: int = 0) -> Iterator[RequestRecord]:
        """Yield its records from this place on."""
        for row in self.rows()[start:]:
            yield self.record(row)


class RecordRing:
    """Has at most `capacity` records, and `max_bytes` of them. Each has a number, one more than the
    record before it has; whoever follows them asks for those `since` the last number it has
    seen."""

    def __init__(
        self,
        capacity: int = DEFAULT_REQUESTS,
        max_bytes: int | None = None,
        most_names: int = MOST_NAMES,
    ) -> None:
        self.capacity = capacity
        self.max_bytes = max_bytes or max(capacity * BYTES_A_REQUEST, 64 * 1024)
        self.num_bytes = 0
        self._most_names = most_names
        self.names = Names(most_names)  # of the page that is filled now
        # Called before anybody reads: what has ended may wait to be packed.
        self.settle: Callable[[], None] = _nothing_waits
        self._last_seq = 0
        self._len = 0
        self._pages: deque[Page] = deque()

    def __len__(self) -> int:
        self.settle()
        return self._len

    @property
    def last_seq(self) -> int:
        """The number of the newest record; 0: there was none."""
        self.settle()
        return self._last_seq

    @property
    def next_seq(self) -> int:
        """The number that the next record will have, whatever still waits to be packed."""
        return self._last_seq + 1

    def append(self, record: RequestRecord) -> None:
        """Keep a record, and forget the oldest if there is no more room."""
        self.fresh_names()
        self.extend([row_of(record, self.names)])

    def fresh_names(self) -> bool:
        """Begin a new table of names if the old one is full; return whether it was."""
        if not self.names.is_full:
            return False
        self.names = Names(self._most_names)
        return True

    def extend(self, rows: Sequence[PackedRow]) -> Sequence[int]:
        """Keep records whose names and kinds are numbers of `names`: a page, forgotten as a whole.
        Return the places of those that are kept."""
        if not rows or not self.capacity:
            return ()
        packed, kept = encode_rows(rows)
        size = len(kept)
        if not size:
            return kept
        self._pages.append(Page(self._last_seq + 1, size, packed, self.names))
        self._last_seq += size
        self._len += size
        self.num_bytes += len(packed)
        while self._len > self.capacity or self.num_bytes > self.max_bytes:
            oldest = self._pages.popleft()
            self._len -= oldest.size
            self.num_bytes -= len(oldest.packed)
        return kept

    def since(self, seq: int, limit: int = 1_000) -> tuple[int, list[RequestRecord]]:
        """Return records with numbers above `seq`, oldest first, `limit` at most, and the number of
        the last of them (`seq` if there are none): to be asked with next time. What has been
        forgotten by then is left out."""
        self.settle()
        found: list[RequestRecord] = []
        if seq >= self._last_seq or not self._pages:
            return seq, found
        start = max(bisect_right(self._pages, seq + 1, key=lambda page: page.first) - 1, 0)
        for number in range(start, len(self._pages)):
            page = self._pages[number]
            for record in page.records(max(seq + 1 - page.first, 0)):
                found.append(record)
                if len(found) >= limit:
                    break
            if len(found) >= limit:
                break
        first = max(seq + 1, self._pages[start].first)
        return first + len(found) - 1, found

    def pages_since(self, seq: int) -> list[tuple[Page, int]]:
        """Return the pages that have records with numbers above `seq`, oldest first, each with the
        place of the first of them. They can be read in another thread."""
        self.settle()
        return [
            (page, max(seq + 1 - page.first, 0))
            for page in self._pages
            if page.first + page.size > seq + 1
        ]

    def newest(
        self, limit: int = 100, keep: Callable[[RequestRecord], bool] | None = None
    ) -> list[RequestRecord]:
        """Return the newest records that `keep` says yes to, newest first."""
        records = (page.record(row) for page, row in self._newest_rows())
        kept = records if keep is None else filter(keep, records)
        return list(islice(kept, limit))

    def find(self, request_id: str) -> RequestRecord | None:
        """Return the newest record of this id; None if there is none, or not any more."""
        self.settle()
        wanted = request_id[:MOST_ID]
        written = wanted.encode(errors="replace")
        for page in reversed(self._pages):
            if written not in page.packed:
                continue
            for row in reversed(page.rows()):
                if row.id == wanted:
                    return page.record(row)
        return None

    def slowest(self, limit: int = 1) -> list[RequestRecord]:
        """Return the records with the longest TTFT, the longest first."""
        self.settle()
        timed = [(row, page) for page in self._pages for row in page.rows() if row.ttft >= 0]
        timed.sort(key=lambda found: found[0].ttft, reverse=True)
        return [page.record(row) for row, page in timed[:limit]]

    def missed(self, limit: int = 100) -> list[RequestRecord]:
        """Return the newest records of requests that reused less than they could have, newest
        first."""
        rows = ((page, row) for page, row in self._newest_rows() if _is_missed(row))
        return [page.record(row) for page, row in islice(rows, limit)]

    @property
    def oldest_at(self) -> float | None:
        """The time when the request of the oldest record came; None without records."""
        self.settle()
        return self._pages[0].rows()[0].at if self._pages else None

    def _newest_rows(self) -> Iterator[tuple[Page, RecordRow]]:
        self.settle()
        for page in reversed(self._pages):
            for row in reversed(page.rows()):
                yield page, row


def _is_missed(row: RecordRow) -> bool:
    return any(miss.kind != MissKind.SILENT for miss in row.missed or ())


def _nothing_waits() -> None:
    """Nothing is to be packed."""
