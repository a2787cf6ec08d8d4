"""The place where an engine publishes its KV events."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventSource:
    """The place where one rank of an engine publishes its KV events."""

    rank: int
    endpoint: str
    replay: str | None
    bind: bool = False  # the engine connects, we must bind
    place: int = 0  # among the ranks that the engine told: what its X-data-parallel-rank takes

    @property
    def is_polled(self) -> bool:
        """True if the engine is asked for its events by HTTP, and does not publish them."""
        return self.endpoint.startswith("http://")
