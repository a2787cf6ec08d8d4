"""A gateway tells its peers, hears them, and lets go of those that are silent."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, Protocol

from inferway.cluster.bus.inbox import Inbox, shared
from inferway.cluster.bus.outbox import Outbox
from inferway.cluster.bus.peer import COUNTS, FIRST_NUMBER, Peer
from inferway.cluster.bus.peer_messages import MOST_NAME, PeerMessage
from inferway.cluster.bus.sockets import Heard, Lost, PeerSockets
from inferway.cluster.bus.sound import sender_of
from inferway.config import UNIX, ServeSettings, peers_port
from inferway.errors import ConfigError, PeerMessageError
from inferway.fleet.elsewhere import OwnCounts
from inferway.fleet.fleet import Fleet
from inferway.fleet.table import EndpointTable
from inferway.metrics import Family, counter, gauge
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import Event

log = logging.getLogger("inferway.peers")

LOOPBACK = "127.0.0.1"

TOGETHER_SECONDS = 0.01  # what happens in this time goes out together
DELAY_SECONDS = 0.02  # from what happens until the others know it
BEAT_SECONDS = 0.2  # something is told so often at least
BEATS_A_ROUND = 5  # all that is so is told once a second
WHOLE_SECONDS = 0.5  # between two times that all that was learned is told
LATE_SECONDS = 0.2  # a beat that comes so late: this process was held up, not its peers
FORGET_SECONDS = 60.0  # after it was last heard a peer is no longer shown
MOST_PEERS = 128
SAY_SECONDS = 60.0  # between two lines in the log of one peer and one reason


class Transport(Protocol):
    """Brings messages to the other gateways, and theirs. `open`, then `send`; `close`."""

    kind: str  # what operators see

    @property
    def endpoint(self) -> str:
        """The address from which this gateway sends to peers, once the transport is open."""

    async def open(self, heard: Heard, lost: Lost) -> None:
        """Begin to hear peers. Raises ConfigError."""

    def send(self, payload: bytes) -> None:
        """Send it to all, or lose it; nobody waits."""

    def forget(self, address: str) -> None:
        """Hear this one no more: it is this gateway itself."""

    async def close(self) -> None: ...


class Replicas:
    """`open`, then `tell`; `close`."""

    def __init__(
        self,
        outbox: Outbox,
        inbox: Inbox,
        table: EndpointTable,
        transport: Transport,
        endpoints: Callable[[], Iterable[str]],
    ) -> None:
        """`endpoints`: the names of those that there are."""
        self._outbox = outbox
        self._inbox = inbox
        self._table = table
        self._transport = transport
        self._endpoints = endpoints
        self._peers: dict[str, Peer] = {}  # by address
        self._said: dict[tuple[str, str], float] = {}
        self._numbers = count(FIRST_NUMBER)
        self._sent = self._sent_bytes = 0  # to all peers: messages
        self._is_open = False
        self._flushes: asyncio.TimerHandle | None = None
        self._beats: asyncio.TimerHandle | None = None
        self._beat_at = 0.0  # when the next one is due
        self._beat = 0
        self._has_new = False  # somebody has come who knows nothing
        self._whole_at = -math.inf  # when all that was learned was told

    async def open(self) -> None:
        """Begin to tell and to hear. Raises ConfigError."""
        await self._transport.open(self._heard, self._lost)
        self._is_open = True
        self._next_beat()

    async def close(self) -> None:
        self._is_open = False
        for timer in (self._flushes, self._beats):
            if timer is not None:
                timer.cancel()
        await self._transport.close()

    def tell(self, plugin: int, event: Event) -> None:
        """Tell what one of the plugins that learn tells."""
        self._outbox.tell(plugin, event)
        self._flush_soon()

    def pass_on(self, place: int, message: PeerMessage | None) -> None:
        """Tell what the process in that place tells; with None, that it has ended."""
        if message is None:
            self._outbox.ended(place, self._now)
        else:
            for told in message.shared:
                self._outbox.tell(told.plugin, told.event, place)
        self._flush_soon()

    def counted(self) -> None:
        """Tell soon what is in flight: it may have changed."""
        self._flush_soon()

    # what operators look at

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows."""
        peers, now = self._peers, self._now
        there = sum([peer.is_there for peer in peers.values()])
        yield gauge("peers", "Gateways beside this one that are heard now.", value=there)
        yield counter("peer_sent", "Messages that were sent to the peers.", value=self._sent)
        told = "Bytes of the messages that were sent to the peers."
        yield counter("peer_sent_bytes", told, value=self._sent_bytes)
        for name, text in COUNTS.items():
            counts = {(address,): peer.counts[name] for address, peer in peers.items()}
            yield counter(f"peer_{name}", text, ["peer"], counts)
        requests = {(address,): peer.requests for address, peer in peers.items()}
        told = "Requests that the peer has with engines, as it tells."
        yield gauge("peer_requests", told, ["peer"], requests)
        ages = {(address,): now - peer.last for address, peer in peers.items()}
        yield gauge("peer_age_seconds", "Seconds since the peer was last heard.", ["peer"], ages)
        yield counter(
            "peer_refused",
            "Messages of the peer that cannot be read, and things in others that cannot be true:"
            " they were refused.",
            ["peer", "reason"],
            {(at, why): n for at, peer in peers.items() for why, n in peer.refused.items()},
        )

    def report(self) -> dict[str, Any]:
        """Return what `/admin/peers` shows."""
        now = self._now
        return {
            "name": self._outbox.name,
            "over": self._transport.kind,
            "address": self._transport.endpoint,
            "peers": [
                {
                    "name": peer.name,
                    "address": peer.address,
                    "state": peer.state(now),
                    "age_seconds": round(now - peer.last, 3),
                    "requests": int(peer.requests),
                    "waiting": peer.num_waiting,
                    **{name: peer.counts[name] for name in COUNTS},
                    "refused": dict(peer.refused),
                }
                for _, peer in sorted(self._peers.items())
            ],
        }

    # what is told

    @property
    def _now(self) -> float:
        return time.monotonic()  # the clock that events are told by

    def _flush_soon(self) -> None:
        if self._flushes is None and self._is_open:
            loop = asyncio.get_running_loop()
            self._flushes = loop.call_later(TOGETHER_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flushes = None
        for payload in self._outbox.messages(self._now):
            self._sent += 1
            self._sent_bytes += len(payload)
            self._transport.send(payload)
        if self._outbox.has_more:
            self._flush_soon()

    def _next_beat(self) -> None:
        self._beat_at = self._now + BEAT_SECONDS
        loop = asyncio.get_running_loop()
        self._beats = loop.call_later(BEAT_SECONDS, self._on_beat)

    def _on_beat(self) -> None:
        now = self._now
        is_late = now - self._beat_at > LATE_SECONDS
        self._next_beat()
        self._beat += 1
        whole = self._has_new and now - self._whole_at >= WHOLE_SECONDS
        if (whole or self._beat % BEATS_A_ROUND == 0) and not self._outbox.has_more:
            self._outbox.begin_round(self._endpoints(), whole=whole)
            if whole:
                self._has_new, self._whole_at = False, now
        self._flush_soon()
        if not is_late:
            self._let_go(now)

    # what is heard

    def _heard(self, address: str, payload: bytes) -> None:
        now = self._now
        try:
            if sender_of(payload) == self._outbox.sender:
                self._lost(address)
                self._transport.forget(address)
                return
        except PeerMessageError:
            pass  # the peer counts it
        peer = self._peers.get(address)
        if peer is None and len(self._peers) >= MOST_PEERS:
            self._refuse("", "too-many-peers", f"there are {MOST_PEERS} already", now)
            return
        if peer is None:
            peer = Peer(address, self._table, self._inbox, self._numbers)
            self._peers[address] = peer
        try:
            is_new = peer.hear(payload, now)
        except PeerMessageError as e:
            peer.refused[e.reason] += 1
            self._refuse(peer.address, e.reason, str(e), now)
            return
        if peer.fault is not None:
            self._refuse(peer.address, peer.fault.reason, str(peer.fault), now)
        if is_new:
            self._has_new = True
            self._stand()
            if self._may_say(peer.address, "heard", now):
                log.info("peer %s at %s is heard", peer.name, peer.address)

    def _refuse(self, address: str, reason: str, text: str, now: float) -> None:
        if self._may_say(address, reason, now):
            log.warning("something that the peer at %s tells is refused: %s", address, text)

    def _may_say(self, address: str, what: str, now: float) -> bool:
        """Return whether the log has not had it for a while."""
        if now - self._said.get((address, what), -math.inf) < SAY_SECONDS:
            return False
        self._said[address, what] = now
        return True

    def _let_go(self, now: float) -> None:
        for peer in self._peers.values():
            if peer.is_silent(now):
                log.warning(
                    "peer %s at %s is silent, and nothing of it counts any more",
                    *(peer.name, peer.address),
                )
                peer.gone(now)
                self._stand()
        for peer in [each for each in self._peers.values() if now - each.last > FORGET_SECONDS]:
            self._forget(peer.address)

    def _lost(self, address: str) -> None:
        peer = self._peers.get(address)
        if peer is not None:
            peer.gone(self._now)
            self._forget(address)
            self._stand()

    def _stand(self) -> None:
        """Take a place among all gateways: somebody has come or gone."""
        there = [_called(peer.sender) for peer in self._peers.values() if peer.is_there]
        for sharing in self._inbox.sharing:
            sharing.stand(_called(self._outbox.sender), there)

    def _forget(self, address: str) -> None:
        self._peers.pop(address, None)
        for key in [key for key in self._said if key[0] == address]:
            del self._said[key]


def _called(sender: int) -> str:
    return f"{sender:016x}"


def has_peers(settings: ServeSettings) -> bool:
    """Return whether other gateways are to be told, and heard."""
    return bool(settings.peers.addresses) or settings.peers.redis is not None


def build_replicas(settings: ServeSettings, fleet: Fleet, inbox: Inbox) -> Replicas:
    """Return it; it is not open yet. Raises ConfigError."""
    outbox = Outbox(
        secrets.randbits(64),
        (settings.peers.name or socket.gethostname())[:MOST_NAME],
        OwnCounts(fleet.table),
        len(inbox.sharing),
        inbox.known,
    )
    return Replicas(
        *(outbox, inbox, fleet.table, transport_of(settings)),
        lambda: [endpoint.name for engine in fleet.engines for endpoint in engine.endpoints],
    )


def own_replicas(
    settings: ServeSettings, fleet: Fleet, plugins: Sequence[ExpectedTtft]
) -> Replicas:
    """Return it for a gateway of one process, whose plugins tell and hear. Raises ConfigError."""

    def tell(number: int, event: Event) -> None:
        replicas.tell(number, event)

    replicas = build_replicas(settings, fleet, Inbox(shared(plugins, tell, DELAY_SECONDS)))
    return replicas


def transport_of(settings: ServeSettings) -> Transport:
    """Return what brings messages to the peers that the settings have. Raises ConfigError for a
    URL that cannot hold, or if redis-py is missing."""
    peers = settings.peers
    if peers.redis is None:
        host = LOOPBACK if settings.host.startswith(UNIX) else settings.host
        return PeerSockets(peers.addresses, host, peers_port(peers))
    try:
        from inferway.cluster.bus.channel import PeerChannel  # an extra: not everybody has redis-py
    except ModuleNotFoundError as e:
        if not (e.name or "").startswith("redis"):
            raise
        raise ConfigError(
            "peers: redis needs redis-py, which is not installed: pip install 'inferway[redis]'"
        ) from e
    return PeerChannel(peers.redis, peers.redis_prefix)
