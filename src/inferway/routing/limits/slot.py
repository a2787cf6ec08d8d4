"""A request's reservation within the limits."""

from __future__ import annotations

from typing import Protocol

from inferway.model import Headers


class Slot(Protocol):
    """A request's reservation within the limits, from when it enters until it leaves: `enter`
    awaits its turn (http.request_queue.Ticket)."""

    waited: float  # seconds, for its turn

    async def enter(self, model: str, headers: Headers, priority: int) -> bool:
        """Return whether it had to wait; `headers` may say for how long it would. Raises
        SaturatedError, or ClientGoneError if its client has not waited."""

    async def wait_for_engine(self, spare: float) -> bool:
        """Wait until an engine can begin the request's prompt soon, if requests wait for that, and
        return whether it had to wait. After `spare` seconds it is too late for its first token to
        be in time. Call it after `enter`; it raises as that does."""

    @property
    def limits_engines(self) -> bool:
        """True if `takes` may say no now."""

    def takes(self, engine: str) -> bool:
        """Return whether the engine has room for it."""

    def move(self, engine: str) -> None:
        """Move the reservation to the engine that takes the request."""

    def leave(self) -> None:
        """Give the reservation back, because the request has ended. Only the first call counts."""

    def beside(self) -> Slot:
        """Return a reservation of the same request at a second engine, which it holds from the
        first `move` on."""
