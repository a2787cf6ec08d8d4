"""The hub among other gateways: it tells them what all its workers send and learn, and its workers
what the others do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import count

import msgspec

from inferway.app import Gateway
from inferway.replicas.build import build_replicas
from inferway.replicas.replicas import Replicas
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.sharing import Begins, Event, Sharing, Waits
from inferway.workers.messages import Message, PeerTold
from inferway.workers.peers import Adopted, Learned, PeerMessage

HUB = 0  # its place


class WorkersLearners:
    """`replicas.learning.Learners`: the hub's plugins and those of all its workers."""

    def __init__(self, sharing: Sequence[Sharing], send: Callable[[Message], None]) -> None:
        self._sharing = sharing
        self._send = send
        self._outgoing: list[PeerMessage] = []
        self._encoder = msgspec.msgpack.Encoder()

    @property
    def num_plugins(self) -> int:
        return len(self._sharing)

    def hear(self, who: int, plugin: int, event: Event) -> None:
        self._sharing[plugin].hear(who, event)
        self._outgoing.append(Learned(plugin, event))

    def adopt(self, plugin: int, known: Known, now: float) -> None:
        self._sharing[plugin].adopt(known, now)
        self._outgoing.append(Adopted(plugin, known))

    def known(self, plugin: int, names: Sequence[str], now: float) -> Known:
        return self._sharing[plugin].known(names, now)

    def heard(self, who: int) -> None:
        messages, self._outgoing = self._outgoing, []
        if messages:
            self._send(PeerTold(who, self._encoder.encode(messages)))

    def gone(self, who: int, now: float) -> None:
        for sharing in self._sharing:
            sharing.gone(who, now)
        self._send(PeerTold(who))

    def stand(self, own: str, others: Collection[str]) -> None:
        """Nothing: the hub decides on no request."""

    def all_known(self, now: float) -> PeerTold:
        """Return what a new worker is told of what was learned."""
        told = [
            Adopted(plugin, sharing.known(list(sharing.slots.names()), now))
            for plugin, sharing in enumerate(self._sharing)
        ]
        return PeerTold(HUB, self._encoder.encode(told))


class WorkersOutlet:
    """`peers.PassesOn`: tells other gateways what the workers tell each other. A request's number
    is one of the hub's."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._numbers = count(1)
        # (place, plugin, number there) -> number of a request that waits
        self._waiting: dict[tuple[int, int, int], int] = {}

    def learned(self, place: int, plugin: int, event: Event) -> None:
        if isinstance(event, Waits):
            number = self._waiting[place, plugin, event.number] = next(self._numbers)
            event = msgspec.structs.replace(event, number=number)
        elif isinstance(event, Begins):
            # one that is assumed to begin is told of no more: it is over by then
            found = self._waiting.pop((place, plugin, event.number), None)
            if found is None:
                return
            event = msgspec.structs.replace(event, number=found)
        self._replicas.tell(plugin, event)

    def heard(self) -> None:
        """What workers have in flight may have changed."""
        self._replicas.counted()

    def ended(self, place: int, now: float) -> None:
        for key in [key for key in self._waiting if key[0] == place]:
            number = self._waiting.pop(key)
            self._replicas.tell(key[1], Begins(number, now, is_assumed=False))


async def meet(
    gateway: Gateway, sharing: Sequence[Sharing], send: Callable[[Message], None]
) -> tuple[WorkersLearners, WorkersOutlet]:
    """Have the hub's gateway share with others what its workers send and learn. Raises
    ConfigError."""
    learners = WorkersLearners(sharing, send)
    replicas = build_replicas(gateway.settings, gateway.fleet, learners)
    await gateway.meet(replicas)
    return learners, WorkersOutlet(replicas)
