"""Times that the answers of each engine have taken of late, from the records of requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from inferway_console.records.record import RequestRecord

LATEST = 200  # answers of an engine that count


class Times(msgspec.Struct, frozen=True):
    """The times of one engine's last answers, in ms; None: none of them was streamed."""

    requests: int
    failed: int
    ttft_p50: float | None
    ttft_p95: float | None


@dataclass(slots=True)
class EngineTimes:
    """`add` each record; `of` an engine."""

    _answers: dict[str, deque[tuple[bool, float]]] = field(default_factory=dict)  # by engine
    _known: dict[str, Times] = field(default_factory=dict)  # until another answer comes

    def add(self, record: RequestRecord, engine: str) -> None:
        """Count a request that has ended, at that engine."""
        answers = self._answers.get(engine)
        if answers is None:
            answers = self._answers[engine] = deque(maxlen=LATEST)
        answers.append((is_failed(record), record.ttft_ms if record.streamed else -1.0))
        self._known.pop(engine, None)

    def of(self, engine: str) -> Times | None:
        """Return what its answers have taken; None if it has had none."""
        answers = self._answers.get(engine)
        if answers is None:
            return None
        known = self._known.get(engine)
        if known is None:
            ttft = sorted(ms for _, ms in answers if ms >= 0)
            failed = sum(has_failed for has_failed, _ in answers)
            known = Times(len(answers), failed, quantile(ttft, 0.5), quantile(ttft, 0.95))
            self._known[engine] = known
        return known

    def forget_others(self, engines: Mapping[str, object]) -> None:
        """Forget all engines but these: the others are no more."""
        for name in self._answers.keys() - engines.keys():
            del self._answers[name]
            self._known.pop(name, None)


def is_failed(record: RequestRecord) -> bool:
    """Return whether the client got an error that was not its own."""
    return record.status >= 500 or record.outcome in ("error", "upstream_error")


def quantile(times: list[float], share: float) -> float | None:
    """Return the quantile of sorted times; None if there are none."""
    if not times:
        return None
    return round(times[min(len(times) - 1, int(share * len(times)))], 1)
