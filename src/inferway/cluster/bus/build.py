"""settings -> this gateway among its peers."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence

from inferway.cluster.bus.learners import Learners, shared
from inferway.cluster.bus.messages import MOST_NAME
from inferway.cluster.bus.outbox import Outbox
from inferway.cluster.bus.replicas import DELAY_SECONDS, Replicas, Transport
from inferway.cluster.bus.sockets import PeerSockets
from inferway.config import UNIX, ServeSettings, peers_port
from inferway.errors import ConfigError
from inferway.fleet.elsewhere import OwnCounts
from inferway.fleet.fleet import Fleet
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import Event

LOOPBACK = "127.0.0.1"


def has_peers(settings: ServeSettings) -> bool:
    """Return whether other gateways are to be told, and heard."""
    return bool(settings.peers.addresses) or settings.peers.redis is not None


def build_replicas(settings: ServeSettings, fleet: Fleet, learners: Learners) -> Replicas:
    """Return it; it is not open yet. Raises ConfigError."""
    outbox = Outbox(
        secrets.randbits(64),
        (settings.peers.name or socket.gethostname())[:MOST_NAME],
        OwnCounts(fleet.table),
        len(learners.sharing),
        learners.known,
    )
    return Replicas(
        *(outbox, learners, fleet.table, transport_of(settings)),
        lambda: [endpoint.name for engine in fleet.engines for endpoint in engine.endpoints],
    )


def own_replicas(
    settings: ServeSettings, fleet: Fleet, plugins: Sequence[ExpectedTtft]
) -> Replicas:
    """Return it for a gateway of one process, whose plugins tell and hear. Raises ConfigError."""

    def tell(number: int, event: Event) -> None:
        replicas.tell(number, event)

    learners = Learners(shared(plugins, tell, DELAY_SECONDS))
    replicas = build_replicas(settings, fleet, learners)
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
