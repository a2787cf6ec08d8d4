"""What finds engines, as the fleet sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from inferway.config import EngineSettings

Tell = Callable[[Sequence[EngineSettings]], None]


class Source(Protocol):
    """`run` until it is cancelled. Never raises for what the world does: a source that cannot be
    read leaves the engines as they were, and says so in the log."""

    async def run(self, tell: Tell) -> None:
        """Tells the engines, all of them, first when they are known and then at each change."""

    @property
    def synced(self) -> bool:
        """Whether the engines are known by now."""
