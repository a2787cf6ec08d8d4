"""Goodput: how many requests were answered in time, by model. What in time means is said by the
settings alone: a client's own headers cannot make a fleet look worse than it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from inferway.config import SloSettings
from inferway.extension import EndedAnswer, Extension
from inferway.metrics import Family, counter
from inferway.routing.record import Record
from inferway.telemetry.request_counts import MAX_MODELS, OTHER

_REFUSED = (429, 503)  # where no engine has been tried


class SloCounts(Extension):
    """An extension that keeps numbers."""

    def __init__(self, slo: SloSettings) -> None:
        self._slo = slo
        self._counts: dict[str, Counter[bool]] = {}  # by model: the good ones and the others

    def on_answers(self, answers: Sequence[EndedAnswer], /) -> None:
        for answer in answers:
            record = answer.record
            if record is None or not record.known_model:
                continue
            good = is_good(self._slo, record, answer.status, answer.seconds)
            if good is not None:
                self._of(record.known_model)[good] += 1

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of it."""
        yield counter(
            "slo_requests",
            "Streamed requests, and refused ones, by model and by whether they were good: answered"
            " within the goals of the settings.",
            ["model", "good"],
            {
                (model, str(good).lower()): number
                for model, counts in self._counts.items()
                for good, number in counts.items()
            },
        )

    def _of(self, model: str) -> Counter[bool]:
        found = self._counts.get(model)
        if found is None:
            if len(self._counts) >= MAX_MODELS:
                model = OTHER
            found = self._counts.setdefault(model, Counter())
        return found


def is_good(slo: SloSettings, record: Record, status: int, seconds: float) -> bool | None:
    """Return whether a request that has ended, after so long, has met all goals; None if it cannot
    be judged: its answer was no stream, or its client left before it was late."""
    ttft = slo.ttft_seconds
    if not record.first_at:
        if record.outcome == "client_gone":
            return False if ttft is not None and seconds > ttft else None
        has_failed = record.is_timed and (status >= 500 or record.outcome == "upstream_error")
        return False if has_failed or status in _REFUSED else None
    if ttft is not None and record.first_at - record.opened_at > ttft:
        return False
    if record.outcome not in ("ok", "client_gone"):
        return False
    tokens = record.events if record.usage is None else record.usage.completion
    took = record.last_at - record.first_at
    return slo.itl_seconds is None or tokens < 2 or took <= slo.itl_seconds * (tokens - 1)
