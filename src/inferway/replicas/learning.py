"""Who takes over what peers have learned: the plugins of this process, or of others beside it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.sharing import Event, Sharing


class Learners(Protocol):
    """Plugins by their places among those of the scheduling that learn. `who` is the number of a
    peer."""

    @property
    def num_plugins(self) -> int: ...

    def hear(self, who: int, plugin: int, event: Event) -> None:
        """Take over what a peer has told; its times are of this gateway's clock."""

    def adopt(self, plugin: int, known: Known, now: float) -> None:
        """Take over what a peer has learned, and is not known here."""

    def known(self, plugin: int, names: Sequence[str], now: float) -> Known:
        """Return what was learned here of these endpoints."""

    def heard(self, who: int) -> None:
        """All of one message has been told."""

    def gone(self, who: int, now: float) -> None:
        """Forget what waits of a peer that has gone."""

    def stand(self, own: str, others: Collection[str]) -> None:
        """Take a place of one's own among all gateways, by what each is called."""


class OwnLearners:
    """Those of this process."""

    def __init__(self, sharing: Sequence[Sharing]) -> None:
        self._sharing = sharing

    @property
    def num_plugins(self) -> int:
        return len(self._sharing)

    def hear(self, who: int, plugin: int, event: Event) -> None:
        self._sharing[plugin].hear(who, event)

    def adopt(self, plugin: int, known: Known, now: float) -> None:
        self._sharing[plugin].adopt(known, now)

    def known(self, plugin: int, names: Sequence[str], now: float) -> Known:
        return self._sharing[plugin].known(names, now)

    def heard(self, who: int) -> None:
        """Nobody waits for it."""

    def gone(self, who: int, now: float) -> None:
        for sharing in self._sharing:
            sharing.gone(who, now)

    def stand(self, own: str, others: Collection[str]) -> None:
        for sharing in self._sharing:
            sharing.stand(own, others)
