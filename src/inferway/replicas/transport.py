"""How messages reach the other gateways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# (address of the peer, message); what is heard is looked at at once.
Heard = Callable[[str, bytes], None]
Lost = Callable[[str], None]  # (address); the peer is no longer to be heard


class Transport(Protocol):
    """`open`, then `send`; `close`."""

    kind: str  # what operators see

    @property
    def endpoint(self) -> str:
        """Where this gateway speaks, once it is open."""

    async def open(self, heard: Heard, lost: Lost) -> None:
        """Begin to hear peers. Raises ConfigError."""

    def send(self, payload: bytes) -> None:
        """Send it to all, or lose it; nobody waits."""

    def forget(self, address: str) -> None:
        """Hear this one no more: it is this gateway itself."""

    async def close(self) -> None: ...
