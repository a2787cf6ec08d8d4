"""Requests over time, for the page's charts: how many, what of their prompts was reachable, chosen
and delivered, and their first tokens, expected and come true. A request counts when it ended."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass, field

from inferway_console.page.engine_times import is_failed, quantile
from inferway_console.records.record import RequestRecord

SECONDS = 2  # of one bucket
BUCKETS = 300  # that are kept: ten minutes
MINUTE = 60  # seconds
_MOST_TIMES = 200  # of one bucket, that quantiles are taken of


@dataclass(slots=True)
class Bucket:
    """The sums of the requests that ended in the same seconds. Tokens are of prompts whose blocks
    are known and whose engine has said what it reused."""

    requests: int = 0
    failed: int = 0
    prompt: int = 0
    reachable: int = 0
    chosen: int = 0
    delivered: int = 0
    unseen: int = 0  # of those delivered, by engines whose caches are not known
    expected: list[float] = field(default_factory=list)  # ms, sorted
    came: list[float] = field(default_factory=list)  # ms, sorted

    def add(self, record: RequestRecord, *, is_unseen: bool = False) -> None:
        self.requests += 1
        self.failed += is_failed(record)
        whole = record.usage_prompt_tokens
        if whole < 0:
            whole = record.prompt_tokens
        if whole > 0 and record.prompt_blocks and record.delivered_tokens >= 0:
            size = record.block_size
            self.prompt += whole
            self.reachable += min(whole, record.reachable_blocks * size)
            self.chosen += min(whole, record.chosen_blocks * size)
            self.delivered += min(whole, record.delivered_tokens)
            self.unseen += min(whole, record.delivered_tokens) if is_unseen else 0
        if record.streamed:  # else the first token comes with the last
            _note(self.expected, record.expected_ttft_ms)
            _note(self.came, record.ttft_ms)

    def told(self, start: int) -> list[float | None]:
        """Return its figures in the order in which the page reads them."""
        return [
            *(start, self.requests, self.failed),
            *(self.prompt, self.reachable, self.chosen, self.delivered),
            *(quantile(self.expected, 0.5), quantile(self.came, 0.5)),
            *(quantile(self.came, 0.9), self.unseen),
        ]


class Timeline:
    """The buckets of the last ten minutes; those without requests are not there."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[int, Bucket] = OrderedDict()
        self._changed: set[int] = set()

    def add(self, record: RequestRecord, *, is_unseen: bool = False) -> None:
        """Count a request that has ended. `is_unseen`: what its engine holds is not known."""
        ended = record.at + max(0.0, record.total_ms) / 1000
        start = int(ended) // SECONDS * SECONDS
        bucket = self._buckets.get(start)
        if bucket is None:
            bucket = self._buckets[start] = Bucket()
            if len(self._buckets) > BUCKETS:
                del self._buckets[min(self._buckets)]
        bucket.add(record, is_unseen=is_unseen)
        self._changed.add(start)

    def changes(self) -> list[list[float | None]]:
        """Return the buckets that have changed since the last call, oldest first."""
        starts = sorted(self._changed & self._buckets.keys())
        self._changed.clear()
        return [self._buckets[start].told(start) for start in starts]

    def minute(self, now: float) -> dict[str, float | None]:
        """Return the quantiles of the first tokens' times of the last minute, in milliseconds.
        `now`: Unix time."""
        times: list[float] = []
        for start, bucket in self._buckets.items():
            if start >= now - MINUTE:
                times += bucket.came
        times.sort()
        return {"p50": quantile(times, 0.5), "p95": quantile(times, 0.95)}

    def whole(self) -> list[list[float | None]]:
        """Return all buckets, oldest first."""
        return [self._buckets[start].told(start) for start in sorted(self._buckets)]


def _note(times: list[float], ms: float) -> None:
    if ms >= 0 and len(times) < _MOST_TIMES:
        insort(times, ms)
