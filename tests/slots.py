"""A double of a request's slot (routing.limits.slot.Slot)."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from inferway.errors import SaturatedError
from inferway.model import Headers


@dataclass
class NotingSlot:
    """Does what a test says, and notes what is asked of it."""

    full: Container[str] = ()  # engines that do not take it
    refuses: SaturatedError | None = None
    while_it_waits: Callable[[], None] | None = None  # None: its turn is at once
    asked: list[tuple[str, int]] = field(default_factory=list)  # model, priority
    moves: list[str] = field(default_factory=list)
    left: int = 0  # times
    limits_engines: bool = True
    waited: float = 0.0

    async def enter(self, model: str, headers: Headers, priority: int) -> bool:  # noqa: ARG002
        self.asked.append((model, priority))
        if self.refuses is not None:
            raise self.refuses
        if self.while_it_waits is not None:
            self.while_it_waits()
        return self.while_it_waits is not None

    async def wait_for_engine(self, spare: float) -> bool:  # noqa: ARG002
        return False

    def takes(self, engine: str) -> bool:
        return engine not in self.full

    def move(self, engine: str) -> None:
        self.moves.append(engine)

    def leave(self) -> None:
        self.left += 1

    def beside(self) -> NotingSlot:
        return NotingSlot(self.full)
