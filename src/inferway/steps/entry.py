"""Where a request waits for its turn, as the request path sees it (flow_control.Ticket)."""

from __future__ import annotations

from typing import Protocol

from inferway.model import Headers


class Entry(Protocol):
    """One request's."""

    waited: float  # seconds, for its turn

    async def enter(self, model: str, headers: Headers, priority: int) -> bool:
        """Whether it had to wait; `headers` may say for how long it would. Raises InferwayError."""

    @property
    def limits_engines(self) -> bool:
        """Whether `takes` may say no now."""

    def takes(self, engine: str) -> bool:
        """Whether the engine has room for it."""
