"""The records of the last requests, in memory, packed; they are unpacked when somebody looks."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from inferway.records.packing import (
    HEAD,
    LOOKED_AT,
    MISSED,
    MOST_ID,
    Names,
    Packed,
    pack,
    tail_size,
    unpack,
)
from inferway.records.record import RequestRecord

DEFAULT_REQUESTS = 10_000
BYTES_A_REQUEST = 1024  # at most, on an average: a typical one has 300 at most
_SIZES = slice(1, 4)  # of a head


@dataclass(frozen=True, slots=True)
class Page:
    """Some records, one behind the other."""

    first: int  # the number of its first record
    heads: bytes
    tails: bytes
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.heads) // HEAD.size

    @property
    def num_bytes(self) -> int:
        return len(self.heads) + len(self.tails)

    @property
    def figures(self) -> NDArray[np.void]:
        """The numbers of LOOKED_AT, a row for each record."""
        return np.frombuffer(self.heads, LOOKED_AT)

    def records(self, start: int = 0) -> Iterator[RequestRecord]:
        """Yield its records from this place on."""
        places = range(start, len(self))
        ends = self._ends()
        for place in places:
            yield self._unpack(place, ends)

    def record(self, place: int) -> RequestRecord:
        """Return the record at this place."""
        return self._unpack(place, self._ends())

    def with_id(self, wanted: bytes) -> RequestRecord | None:
        """Return the last of its records with this id."""
        if wanted not in self.tails:
            return None
        ends = self._ends()
        for place in reversed(range(len(self))):
            size = HEAD.unpack_from(self.heads, place * HEAD.size)[1]
            start = ends[place - 1] if place else 0
            if self.tails[start : start + size] == wanted:
                return self._unpack(place, ends)
        return None

    def _ends(self) -> list[int]:
        sizes = [tail_size(head[_SIZES]) for head in HEAD.iter_unpack(self.heads)]
        return list(accumulate(sizes))

    def _unpack(self, place: int, ends: Sequence[int]) -> RequestRecord:
        head = self.heads[place * HEAD.size : (place + 1) * HEAD.size]
        tail = self.tails[ends[place - 1] if place else 0 : ends[place]]
        return unpack(head, tail, self.names)


class RecordRing:
    """Has at most `capacity` records, and `max_bytes` of them. Each has a number, one more than the
    record before it has; whoever follows them asks for those `since` the last number it has
    seen."""

    def __init__(self, capacity: int = DEFAULT_REQUESTS, max_bytes: int | None = None) -> None:
        self.capacity = capacity
        self.max_bytes = max_bytes or max(capacity * BYTES_A_REQUEST, 64 * 1024)
        self.num_bytes = 0
        self.names = Names()  # of the page that is filled now
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
        self.extend([pack(record, self.names)])

    def fresh_names(self) -> bool:
        """Begin a new table of names if the old one is full; return whether it was."""
        if not self.names.is_full:
            return False
        self.names = Names()
        return True

    def extend(self, packed: Sequence[Packed]) -> None:
        """Keep records that are packed with `names`: a page, which is forgotten as a whole."""
        if not packed or not self.capacity:
            return
        heads = b"".join([each.head for each in packed])
        tails = b"".join([each.tail for each in packed])
        page = Page(self._last_seq + 1, heads, tails, self.names.names)
        self._pages.append(page)
        self._last_seq += len(page)
        self._len += len(page)
        self.num_bytes += page.num_bytes
        while self._len > self.capacity or self.num_bytes > self.max_bytes:
            oldest = self._pages.popleft()
            self._len -= len(oldest)
            self.num_bytes -= oldest.num_bytes

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

    def newest(
        self, limit: int = 100, keep: Callable[[RequestRecord], bool] | None = None
    ) -> list[RequestRecord]:
        """Return the newest records that `keep` says yes to, newest first."""
        self.settle()
        found: list[RequestRecord] = []
        for page in reversed(self._pages):
            for record in reversed(list(page.records())):
                if keep is None or keep(record):
                    found.append(record)
                    if len(found) >= limit:
                        return found
        return found

    def find(self, request_id: str) -> RequestRecord | None:
        """Return the newest record of this id; None if there is none, or not any more."""
        self.settle()
        wanted = request_id.encode(errors="replace")[:MOST_ID]
        for page in reversed(self._pages):
            record = page.with_id(wanted)
            if record is not None:
                return record
        return None

    def slowest(self, limit: int = 1) -> list[RequestRecord]:
        """Return the records with the longest TTFT, the longest first."""
        self.settle()
        places = [(page, place) for page in self._pages for place in range(len(page))]
        if not places:
            return []
        ttft = np.concatenate([page.figures["ttft"] for page in self._pages])
        order = [number for number in ttft.argsort()[::-1][:limit] if ttft[number] >= 0]
        return [page.record(place) for page, place in map(places.__getitem__, order)]

    def missed(self, limit: int = 100) -> list[RequestRecord]:
        """Return the newest records of requests that reused less than they could have, newest
        first."""
        self.settle()
        found: list[RequestRecord] = []
        for page in reversed(self._pages):
            places = (page.figures["flags"] & MISSED).nonzero()[0].tolist()
            found += [page.record(place) for place in reversed(places)]
            if len(found) >= limit:
                break
        return found[:limit]

    @property
    def oldest_at(self) -> float | None:
        """When the request of the oldest record came; None without records."""
        self.settle()
        return float(self._pages[0].figures["at"][0]) if self._pages else None


def _nothing_waits() -> None:
    """Nothing is to be packed."""
