"""Listening sockets, at a port or a Unix socket's path, and their side of TLS with clients."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from inferway.config import LimitSettings, ServeSettings
from inferway.errors import ConfigError

UNIX = "unix:"
_BACKLOG = 2048
_HANDSHAKE_SECONDS = 10.0  # a handshake is no connection yet, and in no limit
_SHUTDOWN_SECONDS = 5.0
_log = logging.getLogger(__name__)

Make = Callable[[], asyncio.Protocol]


class Listener:
    """Listens from `open` to `close`. `port` is 0 for a Unix socket."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, *, reuse_port: bool = False
    ) -> None:
        """`reuse_port`: other processes listen there as well, and the system gives each connection
        to one of them."""
        self.reuse_port = reuse_port
        self.host = host
        self.port = port
        self._tls = tls
        self._path = host.removeprefix(UNIX) if host.startswith(UNIX) else None
        self._inode: int | None = None

    @property
    def url(self) -> str:
        """The server's address as a client writes it."""
        if self._path is not None:
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    async def open(self, make: Make) -> None:
        """Raises ConfigError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        seconds = (_HANDSHAKE_SECONDS, _SHUTDOWN_SECONDS) if self._tls else (None, None)
        try:
            if self._path is None:
                self._server = await loop.create_server(
                    make,
                    self.host,
                    self.port,
                    backlog=_BACKLOG,
                    ssl=self._tls,
                    ssl_handshake_timeout=seconds[0],
                    ssl_shutdown_timeout=seconds[1],
                    reuse_port=self.reuse_port or None,
                )
                self.port = self._server.sockets[0].getsockname()[1]
                return
            _remove_stale(self._path)
            self._server = await loop.create_unix_server(
                make,
                self._path,
                backlog=_BACKLOG,
                ssl=self._tls,
                ssl_handshake_timeout=seconds[0],
                ssl_shutdown_timeout=seconds[1],
            )
            self._inode = os.stat(self._path).st_ino
        except OSError as e:
            raise self._cannot(e) from e

    def close(self) -> None:
        """Accepts no more. The socket's path goes, unless it is another's by now. Once is
        enough."""
        self._server.close()
        inode, self._inode = self._inode, None  # a later socket there may get the same inode
        if self._path is not None and inode is not None and _inode(self._path) == inode:
            os.unlink(self._path)

    async def wait_closed(self) -> None:
        await self._server.wait_closed()

    def _cannot(self, error: OSError) -> ConfigError:
        where = f"port {self.port} on {self.host}" if self._path is None else self.host
        if error.errno == errno.EADDRINUSE:
            return ConfigError(f"{where} is in use; stop what listens there or choose another")
        return ConfigError(f"cannot listen on {where}: {error.strerror or error}")


def _remove_stale(path: str) -> None:
    """Remove a killed process's socket. Raises OSError (EADDRINUSE) if somebody listens."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file that is no socket is there")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def within_file_limit(limits: LimitSettings, num_files: int, num_ports: int = 1) -> LimitSettings:
    """Return the limits, with fewer connections for each port if that is needed: clients of all
    ports together may take half of the files that the process may open. The other half is for
    engines, which could not be reached once clients had taken all. The log says so to who has
    asked for more."""
    most = max(1, num_files // (2 * num_ports))
    if num_files == resource.RLIM_INFINITY or most >= limits.connections:
        return limits
    _log.log(
        logging.DEBUG if limits.connections == LimitSettings().connections else logging.INFO,
        "limits.connections: %d client connections at most, not %d: this process may open %d"
        " files; raise the limit (ulimit -n, LimitNOFILE)",
        most,
        limits.connections,
        num_files,
    )
    return msgspec.structs.replace(limits, connections=most)


def limits_of(settings: ServeSettings) -> LimitSettings:
    """Return the limits of each port, within the files that this process may open now."""
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return within_file_limit(settings.limits, num_files, 1 if settings.admin_port is None else 2)


def raise_file_limit() -> None:
    """Shells give 1,024 descriptors out of habit, for select(2); a request takes two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Certificate:
    """A certificate chain and its key, both PEM, read anew by `reload`. `context` stays the same
    object."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Raises ConfigError."""
        self._chain = chain
        self._key = key
        self.context = self._read()

    def check(self) -> None:
        """Raises ConfigError if what the files say now cannot be used."""
        self._read()

    def reload(self) -> None:
        """Connections from now on see what the files say now. Raises ConfigError, and then goes
        on with what it had."""
        self._read()
        self.context.load_cert_chain(self._chain, self._key)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._chain, self._key, password=no_password)
        except (OSError, ValueError) as e:  # SSLError is an OSError
            what = getattr(e, "reason", None) or getattr(e, "strerror", None) or e
            raise ConfigError(
                f"tls_cert {str(self._chain)!r}, tls_key {str(self._key)!r}: {what}; expected a PEM"
                " certificate chain and its PEM key without a password"
            ) from e
        return context


def no_password() -> str:
    """Raise ValueError, where OpenSSL would ask for a password on the terminal."""
    raise ValueError("the key has a password")


def certificate_of(settings: ServeSettings) -> Certificate | None:
    """Return the certificate that clients get; None without TLS. Raises ConfigError."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificate(Path(settings.tls_cert), Path(settings.tls_key))
