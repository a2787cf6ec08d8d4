"""Gateways hear each other over ZeroMQ: each publishes, and hears what every other publishes.

Whoever is heard is one that we have connected to, at an address that the settings name. A socket
for each says who it was: what a peer says of itself is not asked for that. Connections to the own
port are taken from these addresses only. A peer that does not read loses messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address

from inferway.cluster.bus.sound import MOST_BYTES
from inferway.errors import ConfigError
from inferway.fleet.discovery.sources import Resolve, resolve
from inferway.fleet.zmtp import ZmtpConnection, bound, endpoint_of, keep_connected
from inferway.fleet.zmtp_publishing import PubSocket
from inferway.loop_turns import LoopTurns
from inferway.tasks import Tasks

log = logging.getLogger("inferway.peers")

LOOK_SECONDS = 1.0  # between two looks at what addresses a name has
MOST_PEERS = 128
MOST_CONNECTIONS = 2 * MOST_PEERS  # to our port: a peer may connect anew before the old one is lost
SAY_SECONDS = 60.0  # between two lines in the log of strangers

# (address of the peer, message); what is heard is looked at at once.
Heard = Callable[[str, bytes], None]
Lost = Callable[[str], None]  # (address); the peer is no longer to be heard

_LONGEST_PAUSE = 1.0  # seconds before another attempt to connect to a peer
_HEARTBEAT_SECONDS = 1.0


class PeerSockets:
    """A `replicas.Transport`. `addresses`: HOST:PORT of the others' `port`, this gateway's own
    among them or not."""

    kind = "peer to peer"

    def __init__(
        self,
        addresses: Sequence[str],
        host: str,
        port: int,
        resolve: Resolve = resolve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = [_split(address) for address in addresses]
        self._host = host
        self._port = port
        self._resolve = resolve
        self._clock = clock
        self._said_at: float | None = None  # that a stranger has connected
        self._own: set[str] = set()  # addresses that lead to us
        self._links: dict[str, _Link] = {}
        self._found: dict[tuple[str, int], list[str]] = {}  # all addresses of a name
        self._warned: set[str] = set()
        self._tasks = Tasks(log, "peers are no longer looked for, by a fault of the gateway")
        self._heard: Heard = _to_nobody
        self._lost: Lost = _to_nobody
        self._turns = LoopTurns()
        self._endpoint = ""
        self._publishing: PubSocket | None = None

    @property
    def endpoint(self) -> str:
        """The address that peers connect to."""
        return self._endpoint

    async def open(self, heard: Heard, lost: Lost) -> None:
        self._heard, self._lost = heard, lost
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            listening = bound(f"tcp://{host}:{self._port}")
        except OSError as e:
            raise ConfigError(
                f"peers: port {self._port} at {self._host}: {e.strerror}; choose another one"
                " (peers.port, --peers-port)"
            ) from e
        self._endpoint = endpoint_of(listening)
        self._publishing = PubSocket(log, "what this gateway tells its peers")
        self._publishing.bind(listening, self._admits, MOST_CONNECTIONS)
        log.info("other gateways are told at %s what this one sends and learns", self.endpoint)
        self._tasks.spawn(self._follow())

    def send(self, payload: bytes) -> None:
        if self._publishing is not None:
            self._publishing.send([payload])

    def forget(self, address: str) -> None:
        self._own.add(address)
        self._close(address)

    async def close(self) -> None:
        await self._tasks.close()
        for address in list(self._links):
            self._close(address)
        publishing, self._publishing = self._publishing, None
        if publishing is not None:
            await publishing.close()

    async def _follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Find out what addresses the names have, and connect to those that are new."""
        for host, port in self._names:
            try:
                found = await self._resolve(host, port)
                self._warned.discard(host)
            except OSError as e:
                found = []  # its peers stay
                if host not in self._warned:
                    told = "peers: the name %s was not resolved: %s; the peers stay as they were"
                    log.warning(told, host, e)
                self._warned.add(host)
            if found:
                self._found[host, port] = found
        wanted = {
            _joined(each, port)
            for (_, port), found in self._found.items()
            for each in _one_family(found)
        }
        self._own &= wanted
        for address in self._links.keys() - wanted:
            self._close(address)
            self._lost(address)
        for address in sorted(wanted - self._links.keys() - self._own):
            if len(self._links) < MOST_PEERS:
                self._links[address] = _Link(address, self._heard, self._turns)

    def _close(self, address: str) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            link.close()

    def _admits(self, address: str) -> bool:
        """Return whether the address is one of a peer; the log names another one."""
        found = _plain(address)
        peers = {_plain(each) for of_name in self._found.values() for each in of_name}
        # on one machine, whatever its loopback addresses are
        if found in peers or (found.is_loopback and any(each.is_loopback for each in peers)):
            return True
        now = self._clock()
        if self._said_at is None or now - self._said_at >= SAY_SECONDS:
            self._said_at = now
            log.warning(
                "peers: a connection from %s to port %d is closed: no address of peers.addresses"
                " (--peers) is this one; name it there if it is a gateway's (said once in %g s at"
                " most)",
                *(address, self._port, SAY_SECONDS),
            )
        return False


class _Link:
    """A connection to one peer, made again whenever it ends, until `close`. A `zmtp.Owner`."""

    def __init__(self, address: str, heard: Heard, turns: LoopTurns) -> None:
        self._address = address
        self._heard = heard
        make = partial(
            ZmtpConnection,
            *("SUB", self),
            heartbeat_seconds=_HEARTBEAT_SECONDS,
            message_bytes=MOST_BYTES,
            turns=turns,
        )
        self._tasks = Tasks(log, f"peer {address} is no longer heard, by a fault of the gateway")
        self._tasks.spawn(keep_connected(f"tcp://{address}", self, make, _LONGEST_PAUSE))

    def close(self) -> None:
        self._heard = _to_nobody
        for task in self._tasks.running:
            task.cancel()

    # zmtp.Owner

    def connected(self, connection: ZmtpConnection) -> None:
        """Do nothing: the first message shows that the peer is there."""

    def received(self, connection: ZmtpConnection, messages: list[list[bytes]]) -> None:
        del connection
        for frames in messages:
            self._heard(self._address, frames[0] if len(frames) == 1 else b"")

    def disconnected(self, connection: ZmtpConnection) -> None:
        """Do nothing: a silent peer is lost."""

    def refused(self, fault: str) -> None:
        log.debug("peer at %s: %s", self._address, fault)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _plain(address: str) -> IPv4Address | IPv6Address:
    """Return the address without its zone, and one of IPv4 that is mapped to IPv6 as IPv4."""
    return ip_address(address.partition("%")[0].removeprefix("::ffff:"))


def _one_family(addresses: Sequence[str]) -> Sequence[str]:
    """Return one address of a gateway that has some of both families: it would count twice."""
    return [each for each in addresses if ":" not in each] or addresses


def _to_nobody(*_: object) -> None:
    """Drop it: nobody listens yet, or any more."""
