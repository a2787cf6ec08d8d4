"""HTTP to engines: a host is a host, or a Unix socket's path (config.EngineSettings.http_url)."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.client_exceptions import UnixClientConnectorError

from inferway.config import unix_path
from inferway.upstream.pool import IDLE_KEEP_ALIVE_SECONDS

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.tracing import Trace


class EngineConnector(aiohttp.TCPConnector):
    """For any number of engines. aiohttp's own for Unix sockets knows one path each; what it does
    is done here for each path."""

    def __init__(
        self, tls: ssl.SSLContext | None, *, idle_keep_alive: float = IDLE_KEEP_ALIVE_SECONDS
    ) -> None:
        """`tls` says who is trusted to be an https engine; else whom the system trusts."""
        super().__init__(
            # no limit of connections: who does not answer must not keep others from being asked
            limit=0,
            # Requests take turns on the idle connections, so as many as were once needed at the
            # same time would stay open; and engines close theirs after 5 s.
            keepalive_timeout=idle_keep_alive,
            ssl=tls or True,
        )

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        path = unix_path(req.url.host or "")
        if path is None:
            return await super()._create_connection(req, traces, timeout)
        try:
            _, protocol = await self._loop.create_unix_connection(self._factory, path)
        except OSError as e:
            raise UnixClientConnectorError(path, req.connection_key, e) from e
        return protocol
