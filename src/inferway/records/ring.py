"""The records of the last requests, in memory, packed; they are unpacked when somebody looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from inferway.records.record import RequestRecord

DEFAULT_REQUESTS = 10_000


class RecordRing:
    """Has at most `capacity` records. Each has a number, one more than the record before it has;
    whoever follows them asks for those `since` the last number it has seen."""

    def __init__(self, capacity: int = DEFAULT_REQUESTS) -> None:
        self.capacity = capacity
        self.last_seq = 0  # the number of the newest; 0: there was none
        self._packed: deque[bytes] = deque(maxlen=capacity)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(RequestRecord)

    def __len__(self) -> int:
        return len(self._packed)

    def append(self, record: RequestRecord) -> None:
        """Keep the record, and forget the oldest if there is no more room."""
        self.last_seq += 1
        self._packed.append(self._encoder.encode(record))

    def since(self, seq: int, limit: int = 1_000) -> tuple[int, list[RequestRecord]]:
        """Return records with numbers above `seq`, oldest first, `limit` at most, and the number of
        the last of them (`seq` if there are none): to be asked with next time. What has been
        forgotten by then is left out."""
        first = self.last_seq - len(self._packed) + 1
        start = max(seq + 1, first)
        end = min(start + limit - 1, self.last_seq)
        found = [self._unpack(number - first) for number in range(start, end + 1)]
        return (end if found else seq), found

    def newest(
        self, limit: int = 100, keep: Callable[[RequestRecord], bool] | None = None
    ) -> list[RequestRecord]:
        """Return the newest records that `keep` says yes to, newest first."""
        found: list[RequestRecord] = []
        for place in range(len(self._packed) - 1, -1, -1):
            record = self._unpack(place)
            if keep is None or keep(record):
                found.append(record)
                if len(found) >= limit:
                    break
        return found

    def find(self, request_id: str) -> RequestRecord | None:
        """Return the newest record of this id; None if there is none, or not any more."""
        found = self.newest(1, lambda record: record.id == request_id)
        return found[0] if found else None

    def slowest(self, limit: int = 1) -> list[RequestRecord]:
        """Return the records with the longest TTFT, the longest first."""
        timed = [record for record in self.newest(self.capacity) if record.ttft_ms >= 0]
        return sorted(timed, key=lambda record: record.ttft_ms, reverse=True)[:limit]

    def missed(self, limit: int = 100) -> list[RequestRecord]:
        """Return the newest records of requests that reused less than they could have."""
        return self.newest(limit, lambda record: record.is_missed)

    @property
    def oldest_at(self) -> float | None:
        """When the request of the oldest record came; None without records."""
        return self._unpack(0).at if self._packed else None

    def _unpack(self, place: int) -> RequestRecord:
        return self._decoder.decode(self._packed[place])
