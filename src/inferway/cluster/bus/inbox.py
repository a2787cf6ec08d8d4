"""Takes over what requests of other processes and gateways do, and what was learned from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from inferway.cluster.bus.peer_messages import (
    KnownTold,
    PeerMessage,
    PeerTold,
    decode_peer,
    of_process,
)
from inferway.cluster.bus.workers import ToldOverlay
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import Event, Sharing

HUB = 0  # its place among the processes


class Inbox:
    """`sharing`: of the plugins that learn, by their places. `who`: the place of a process, or the
    number of a gateway; times are of this process's clock."""

    def __init__(
        self,
        sharing: Sequence[Sharing],
        overlay: ToldOverlay | None = None,
        pass_on: Callable[[int, PeerMessage | None], None] | None = None,
    ) -> None:
        """`overlay`: None where no request is decided. `pass_on` gets each message, too, and None
        when who has told them has gone."""
        self.sharing = sharing
        self._overlay = overlay
        self._pass_on = pass_on

    def hear(self, told: PeerTold, now: float) -> None:
        """Take over what another process has told, or that it has ended."""
        if told.payload:
            self.take(told.who, decode_peer(told.payload), now)
        else:
            self.gone(told.who, now)

    def take(self, who: int, message: PeerMessage, now: float) -> None:
        """Take over what was told."""
        for shared in message.shared:
            self.sharing[shared.plugin].hear(who, shared.event)
        for told in message.known:
            self.sharing[told.plugin].adopt(told.known, now)
        if self._overlay is not None:
            for prompt in message.prompts:
                self._overlay.hear(who, prompt)
        if self._pass_on is not None:
            self._pass_on(who, message)

    def gone(self, who: int, now: float) -> None:
        """Forget what is on its way from one that has ended."""
        for sharing in self.sharing:
            sharing.gone(who, now)
        if self._overlay is not None:
            self._overlay.gone(who)
        if self._pass_on is not None:
            self._pass_on(who, None)

    def known(self, plugin: int, names: Sequence[str], now: float) -> Known:
        """Return what was learned here of these endpoints."""
        return self.sharing[plugin].known(names, now)

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
