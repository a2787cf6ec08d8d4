"""A port on which several processes of ours are to listen, and nobody else."""

from __future__ import annotations

import errno
import socket

from inferway.errors import ConfigError


class ReservedPort:
    """Bound, and not listened on, until `close`; `port` is the one that the system has chosen if it
    was 0.

    Who shares a port by SO_REUSEPORT would let a second gateway of the same user share it, which
    would take half of the connections, and nobody would know. So a hub also has a socket in the
    abstract namespace, named by host and port: it is gone when its hub is. Workers that a killed
    hub has left behind still listen; the next one may share the port with them until they end.
    """

    def __init__(self, host: str, port: int) -> None:
        """Raises ConfigError if somebody else listens there."""
        self._name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket = socket.socket()
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, *_, address = found[0]
            self._socket.close()
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._socket.bind(address)
            self.port: int = self._socket.getsockname()[1]
            self._name.bind(f"\0inferway {address[0]} {self.port}")
        except OSError as e:
            self.close()
            if e.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {port} on {host} is in use; stop what listens there or choose another"
                ) from e
            raise ConfigError(f"cannot listen on {host}, port {port}: {e.strerror or e}") from e

    def close(self) -> None:
        """Let others have it. It may be called twice."""
        self._name.close()
        self._socket.close()
