"""The HTTP servers of a simulated engine: its API, and where other engines fetch blocks."""

from __future__ import annotations

import asyncio
import os

from aiohttp import web

from inferway.errors import ConfigError

_BACKLOG = 128  # connections that wait to be accepted; aiohttp's own

# Of the event loop, from a connection's accept to the application's being told of it, and one more.
_STEPS = 3


class AppServer:
    """An application that listens. A client that leaves cancels its handler."""

    def __init__(self, runner: web.AppRunner, server: asyncio.Server) -> None:
        self._runner = runner
        self._server = server

    @classmethod
    async def start(
        cls, application: web.Application, host: str, port: int, *, kind: str = ""
    ) -> AppServer:
        """Listen on `port`, 0 for any that is free. Raises ConfigError naming one that cannot be
        had, by the flag `--port` or, of a `kind`, `--<kind>-port`."""
        runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        assert runner.server is not None
        try:
            listening = await asyncio.get_running_loop().create_server(
                runner.server, host, port, backlog=_BACKLOG
            )
        except OSError as e:
            await runner.cleanup()
            why = os.strerror(e.errno or 0).lower()
            name, flag = (f"{kind} port", f"--{kind}-port") if kind else ("port", "--port")
            raise ConfigError(
                f"{name} {port} on {host} cannot be had: {why}; choose another with {flag}"
            ) from e
        return cls(runner, listening)

    @property
    def port(self) -> int:
        """The one it listens on."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Cut off what still runs, and close all connections.

        asyncio forgets a connection that it has accepted when the server closes before the
        application knows of it: it would stay open. So nothing is accepted for a moment before.
        """
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening)
        for _ in range(_STEPS):
            await asyncio.sleep(0)
        self._server.close()
        await self._runner.cleanup()
