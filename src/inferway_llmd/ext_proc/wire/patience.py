"""The limit of what is taken from a client that asks for nothing: pings, empty frames, resets of
unanswered calls. A flood of it has no other end (CVE-2019-9511 to 9518, CVE-2023-44487,
CVE-2024-27316)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferway_llmd.ext_proc.wire.frames import ConnectionFault, Fault


@dataclass(frozen=True, slots=True)
class Patience:
    """The number of useless frames that a client may send in so many seconds."""

    frames: int = 100_000
    seconds: float = 10.0


class Flood:
    """The amount of useless frames that one client has sent."""

    __slots__ = ("_clock", "_count", "_patience", "_since")

    def __init__(self, patience: Patience, clock: Callable[[], float]) -> None:
        self._patience = patience
        self._clock = clock
        self._count, self._since = 0, clock()

    def count(self, cost: int = 1) -> None:
        """Count a frame that asks for nothing; `cost`: it is as dear as so many. Raises
        ConnectionFault."""
        self._count += cost
        if self._count > self._patience.frames:
            now = self._clock()
            if now - self._since < self._patience.seconds:
                raise ConnectionFault(Fault.ENHANCE_YOUR_CALM, "a flood of frames for nothing")
            self._count, self._since = 0, now
