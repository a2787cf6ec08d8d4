"""Takes over what other processes and gateways have learned, and what their requests do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from inferway.cluster.bus.messages import KnownTold, Message, PeerTold, Shared, of_process
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import Event, Sharing

HUB = 0  # its place among the processes


class Learners:
    """The plugins of the scheduling that learn, by their places, of this process, and of its
    workers. `who` is the number of a peer."""

    def __init__(
        self, sharing: Sequence[Sharing], tell_workers: Callable[[Message], None] | None = None
    ) -> None:
        """`tell_workers`: None: there are none."""
        self.sharing = sharing
        self._tell_workers = tell_workers
        self._shared: list[Shared] = []
        self._known: list[KnownTold] = []

    def hear(self, who: int, plugin: int, event: Event) -> None:
        """Take over what a peer has told; its times are of this gateway's clock."""
        self.sharing[plugin].hear(who, event)
        if self._tell_workers is not None:
            self._shared.append(Shared(plugin, event))

    def adopt(self, plugin: int, known: Known, now: float) -> None:
        """Take over what a peer has learned, and is not known here."""
        self.sharing[plugin].adopt(known, now)
        if self._tell_workers is not None:
            self._known.append(KnownTold(plugin, known))

    def known(self, plugin: int, names: Sequence[str], now: float) -> Known:
        """Return what was learned here of these endpoints."""
        return self.sharing[plugin].known(names, now)

    def heard(self, who: int) -> None:
        """Tell the workers of one message: all of it has been taken over."""
        if self._tell_workers is not None and (self._shared or self._known):
            self._tell_workers(PeerTold(who, of_process(self._shared, self._known)))
            self._shared, self._known = [], []

    def gone(self, who: int, now: float) -> None:
        """Forget what waits of a peer that has gone."""
        for sharing in self.sharing:
            sharing.gone(who, now)
        if self._tell_workers is not None:
            self._tell_workers(PeerTold(who))

    def stand(self, own: str, others: Collection[str]) -> None:
        """Take a place of one's own among all gateways, by what each is called."""
        for sharing in self.sharing:
            sharing.stand(own, others)

    def all_known(self, now: float) -> PeerTold:
        """Return what a new worker is told of what was learned."""
        known = [
            KnownTold(plugin, sharing.known(list(sharing.slots.names()), now))
            for plugin, sharing in enumerate(self.sharing)
        ]
        return PeerTold(HUB, of_process(known=known))


def shared(
    plugins: Sequence[ExpectedTtft],
    tell: Callable[[int, Event], None],
    delay_seconds: float = 0.0,
) -> Sequence[Sharing]:
    """Have the plugins tell others what they learn, each with its place. Return who takes over what
    the others tell."""
    return [
        plugin.share(partial(tell, number), delay_seconds) for number, plugin in enumerate(plugins)
    ]
