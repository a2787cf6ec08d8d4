"""What operators see of the peers: metrics, and `/admin/peers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inferway.metrics import Family, Row, counter, gauge, table
from inferway.replicas.peer import Peer

_ROWS: tuple[Row[Peer], ...] = (
    (
        counter,
        "peer_messages",
        "Messages of the peer that were taken over.",
        lambda peer: peer.stats.messages,
    ),
    (
        counter,
        "peer_bytes",
        "Bytes of the messages of the peer that were taken over.",
        lambda peer: peer.stats.bytes,
    ),
    (
        counter,
        "peer_lost",
        "Messages of the peer that have not come, as its numbers tell.",
        lambda peer: peer.stats.lost,
    ),
    (
        counter,
        "peer_late",
        "Messages of the peer that came twice, or after a later one, and do not count.",
        lambda peer: peer.stats.late,
    ),
    (
        counter,
        "peer_unknown",
        "Things that the peer has told of engines which are not known here.",
        lambda peer: peer.stats.unknown,
    ),
    (
        gauge,
        "peer_requests",
        "Requests that the peer has with engines, as it tells.",
        lambda peer: peer.requests,
    ),
)


@dataclass(slots=True)
class Sent:
    """What was told to all peers."""

    messages: int = 0
    bytes: int = 0

    def count(self, num_bytes: int) -> None:
        """Count a message of so many bytes."""
        self.messages += 1
        self.bytes += num_bytes


def families(
    peers: Mapping[str, Peer], sent: Sent, heard: Mapping[str, float], now: float
) -> Iterator[Family]:
    """Yield what /metrics shows; `heard`: when each was heard last."""
    there = sum([peer.is_there for peer in peers.values()])
    yield gauge("peers", "Gateways beside this one that are heard now.", value=there)
    yield counter("peer_sent", "Messages that were sent to the peers.", value=sent.messages)
    yield counter(
        "peer_sent_bytes", "Bytes of the messages that were sent to the peers.", value=sent.bytes
    )
    by_label = {(address,): peer for address, peer in peers.items()}
    yield from table(_ROWS, ["peer"], by_label)
    ages = {(address,): now - at for address, at in heard.items()}
    yield gauge("peer_age_seconds", "Seconds since the peer was last heard.", ["peer"], ages)
    yield counter(
        "peer_refused",
        "Messages of the peer that cannot be read, and things in others that cannot be true:"
        " they were refused.",
        ["peer", "reason"],
        {
            (address, reason): number
            for address, peer in peers.items()
            for reason, number in peer.stats.refused.items()
        },
    )


def peer_report(peer: Peer, age: float) -> dict[str, Any]:
    """Return what `/admin/peers` has of one; `age`: seconds since it was last heard."""
    stats = peer.stats
    return {
        "name": peer.name,
        "address": peer.address,
        "state": "heard" if peer.is_there else "silent",
        "age_seconds": round(age, 3),
        "requests": int(peer.requests),
        "waiting": peer.num_waiting,
        "messages": stats.messages,
        "bytes": stats.bytes,
        "lost": stats.lost,
        "late": stats.late,
        "unknown": stats.unknown,
        "refused": dict(stats.refused),
    }
