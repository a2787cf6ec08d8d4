"""HTTP to engines: a host is a host, or a Unix socket's path (config.EngineSettings.http_url)."""

from __future__ import annotations

import ssl
from functools import partial
from typing import TYPE_CHECKING, cast

import aiohttp
from aiohttp.client_exceptions import UnixClientConnectorError
from aiohttp.client_proto import ResponseHandler

from inferway.config import unix_path
from inferway.upstream.pool import IDLE_KEEP_ALIVE_SECONDS

if TYPE_CHECKING:
    from aiohttp.tracing import Trace


_MAX_ANSWERS = 16  # that nobody has taken: informational ones (1xx), of a single question
_SLICE_BYTES = 16 * 1024  # that are parsed before they are counted


class _Answers(ResponseHandler):
    """Takes no answers without end: aiohttp would read all that come at once, 50 µs each, in the
    same turn of the loop, and then again."""

    def data_received(self, data: bytes) -> None:
        for at in range(0, max(1, len(data)), _SLICE_BYTES):
            super().data_received(data[at : at + _SLICE_BYTES])
            if len(self) > _MAX_ANSWERS:
                self.abort()
                words = f"more than {_MAX_ANSWERS} answers at once to one question"
                self.set_exception(aiohttp.ClientConnectionError(words))
                return


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
        self._factory = cast("partial[ResponseHandler]", partial(_Answers, loop=self._loop))

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
