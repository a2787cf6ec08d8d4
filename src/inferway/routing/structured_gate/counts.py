"""Counters of the gate: plain numbers, read when /metrics is scraped."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class GateCounts:
    requests: dict[tuple[str, ...], int] = field(default_factory=dict)  # (kind, outcome)
    warmed: dict[str, int] = field(default_factory=dict)  # by outcome
    waited: float = 0.0  # seconds, by requests for their check

    def asked(self, kind: str, outcome: str) -> None:
        """Count a request by the kind of its shape and the outcome: checked, unchecked, refused,
        quarantined or busy."""
        self.requests[kind, outcome] = self.requests.get((kind, outcome), 0) + 1

    def warm(self, outcome: str) -> None:
        """Count a shape that an engine was told of in advance: sent, failed or dropped."""
        self.warmed[outcome] = self.warmed.get(outcome, 0) + 1
