"""The records of all workers in the hub's ring, which admins, the page and the files read.

They are fetched when somebody looks: a request that nobody asks for costs a worker no more than it
costs one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inferway.records.record import RequestRecord
from inferway.records.recorder import Recorder
from inferway.workers.messages import RecordsTold

MOST_RECORDS = 2_000  # of one answer


@dataclass(slots=True)
class WorkerRecords:
    """Takes what workers tell into the hub's ring."""

    recorder: Recorder
    since: dict[int, int] = field(default_factory=dict)  # place -> the last record's number

    def take(self, told: Mapping[int, RecordsTold]) -> None:
        """Take the answers, by place; the records of all workers in the order in which they have
        ended."""
        found: list[tuple[float, RequestRecord, list[int] | None]] = []
        for place, each in told.items():
            self.since[place] = each.seq
            for at, record in enumerate(each.records):
                ended = record.at + record.total_ms / 1000
                found.append((ended, record, each.keys.get(at)))
        found.sort(key=lambda item: item[0])
        ring = self.recorder.ring
        for _, record, keys in found:
            number = ring.next_seq
            ring.append(record)
            if keys is not None and self.recorder.keeps_keys:
                self.recorder.keys.append((number, keys))

    def ended(self, place: int) -> None:
        """The next process there begins anew."""
        self.since.pop(place, None)


def told(recorder: Recorder, number: int, since: int, snapshots: dict[str, bytes]) -> RecordsTold:
    """Return what a worker answers."""
    recorder.settle()
    seq, records = recorder.ring.since(since, MOST_RECORDS)
    first = seq - len(records) + 1
    keys = {at - first: list(each) for at, each in recorder.take_keys(seq) if at >= first}
    return RecordsTold(number, seq, records, keys, snapshots)
