"""From each gateway to each, over ZeroMQ: each publishes, and hears what every other publishes.

Whoever is heard is one that we have connected to, at an address that the settings name. A socket
for each says who it was: what a peer says of itself is not asked for that. Nothing is kept for a
peer that does not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

import zmq

from inferway.errors import ConfigError
from inferway.fleet.discovery.sources import Resolve, resolve
from inferway.replicas.messages import MOST_BYTES
from inferway.replicas.transport import Heard, Lost
from inferway.tasks import Tasks

log = logging.getLogger("inferway.peers")

LOOK_SECONDS = 1.0  # between two looks at what addresses a name has
MOST_PEERS = 128
_WAITING = 200  # messages of a peer that are read later, or of ours that it has not read
_AT_ONCE = 20  # messages of a peer, before others have their turn
_RECONNECT_MS, _MOST_RECONNECT_MS = 100, 1000
_HEARTBEAT_MS = 1000


class PeerSockets:
    """A `transport.Transport`. `addresses`: HOST:PORT of the others' `port`, this gateway's own
    among them or not."""

    kind = "peer to peer"

    def __init__(
        self,
        addresses: Sequence[str],
        host: str,
        port: int,
        context: zmq.Context[zmq.Socket[bytes]],
        resolve: Resolve = resolve,
    ) -> None:
        self._names = [_split(address) for address in addresses]
        self._host = host
        self._port = port
        self._context = context
        self._resolve = resolve
        self._own: set[str] = set()  # addresses that lead to us
        self._links: dict[str, _Link] = {}
        self._found: dict[tuple[str, int], list[str]] = {}
        self._warned: set[str] = set()
        self._tasks = Tasks(log, "peers are no longer looked for, by a fault of the gateway")
        self._heard: Heard = _to_nobody
        self._lost: Lost = _of_nobody
        self._publishing: zmq.Socket[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """The address that peers connect to."""
        assert self._publishing is not None
        return self._publishing.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    async def open(self, heard: Heard, lost: Lost) -> None:
        self._heard, self._lost = heard, lost
        self._publishing = socket = self._context.socket(zmq.PUB)
        socket.setsockopt(zmq.SNDHWM, _WAITING)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, ":" in self._host)
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            socket.bind(f"tcp://{host}:{self._port}")
        except zmq.ZMQError as e:
            socket.close()
            raise ConfigError(
                f"peers: port {self._port} at {self._host}: {e.strerror}; choose another one"
                " (peers.port, --peers-port)"
            ) from e
        log.info("other gateways are told at %s what this one sends and learns", self.endpoint)
        self._tasks.spawn(self._follow())

    def send(self, payload: bytes) -> None:
        if self._publishing is not None:
            with suppress(zmq.Again):
                self._publishing.send(payload, zmq.NOBLOCK)

    def forget(self, address: str) -> None:
        self._own.add(address)
        self._close(address)

    async def close(self) -> None:
        await self._tasks.close()
        for address in list(self._links):
            self._close(address)
        if self._publishing is not None:
            self._publishing.close(linger=0)
            self._publishing = None

    async def _follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Find out what addresses the names have, and connect to those that are new."""
        for name in self._names:
            await self._find(*name)
        wanted = {address for found in self._found.values() for address in found}
        self._own &= wanted
        for address in self._links.keys() - wanted:
            self._close(address)
            self._lost(address)
        for address in sorted(wanted - self._links.keys() - self._own):
            if len(self._links) < MOST_PEERS:
                self._links[address] = _Link(address, self._context, self._heard)

    async def _find(self, host: str, port: int) -> None:
        """A name that cannot be resolved leaves its peers as they were."""
        try:
            addresses = await self._resolve(host, port)
        except OSError as e:
            if host not in self._warned:
                log.warning(
                    "peers: the name %s was not resolved: %s; the peers stay as they were", host, e
                )
            self._warned.add(host)
            return
        self._warned.discard(host)
        if addresses:
            self._found[host, port] = [_joined(each, port) for each in _one_family(addresses)]

    def _close(self, address: str) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            link.close()


class _Link:
    """A socket that hears one peer, for as long as it is not closed. It connects again by
    itself."""

    def __init__(self, address: str, context: zmq.Context[zmq.Socket[bytes]], heard: Heard) -> None:
        self._address = address
        self._heard = heard
        self._socket = socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, _WAITING)
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, "[" in address)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _MOST_RECONNECT_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(f"tcp://{address}")
        self._loop = asyncio.get_running_loop()
        self._file = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._file, self._read)
        self._read()  # the file tells of what comes from now on

    def close(self) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._file)
            self._socket.close(linger=0)

    def _read(self) -> None:
        """The file tells once that there is something: all of it has to be read."""
        for _ in range(_AT_ONCE):
            if self._socket.closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard(self._address, frames[0] if len(frames) == 1 else b"")
        self._loop.call_soon(self._read)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _one_family(addresses: Sequence[str]) -> Sequence[str]:
    """Of a gateway that has addresses of both families, one: it would count twice."""
    return [each for each in addresses if ":" not in each] or addresses


def _to_nobody(_: str, __: bytes) -> None:
    """It is not open yet."""


def _of_nobody(_: str) -> None:
    """It is not open yet."""
