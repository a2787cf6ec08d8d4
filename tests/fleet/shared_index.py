"""An index in memory that behaves to the fleet as one that gateways share."""

from __future__ import annotations

from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import LastReport, SharedIndex
from inferway.model import HolderId


class SharedMemory(MemoryIndex):
    """`told`: what the fleet has said of each picture; `states`: of those that others write."""

    def __init__(self, *, away: bool = False) -> None:
        super().__init__()
        self.away = away
        self.names: dict[HolderId, str] = {}
        self.states: dict[HolderId, str] = {}
        self.told: list[tuple[HolderId, LastReport]] = []

    @property
    def shared(self) -> SharedIndex:
        return self

    def introduce(self, holder: HolderId, name: str) -> None:
        self.names[holder] = name

    def retire(self, holder: HolderId) -> None:
        del self.names[holder]

    def tell(self, holder: HolderId, report: LastReport) -> None:
        self.told.append((holder, report))

    def shared_state(self, holder: HolderId) -> str | None:
        return self.states.get(holder)
