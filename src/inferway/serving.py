"""Runs what serves, a gateway or the hub of several processes, until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Protocol

from inferway.config import ServeSettings
from inferway.http.listening import raise_file_limit
from inferway.signals import ENDING, listen
from inferway.tasks import Tasks

log = logging.getLogger("inferway")


class Served(Protocol):
    """A gateway, as it is started, reloaded and stopped (`app.Gateway`)."""

    settings: ServeSettings

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def reload(self, read: Callable[[], ServeSettings]) -> None: ...
    def stop_accepting(self) -> None: ...
    def cut_connections(self) -> None: ...


async def serve(
    make: Callable[[], Served], *, reread: Callable[[], ServeSettings] | None = None
) -> None:
    """Run what `make` returns until SIGINT or SIGTERM; SIGHUP takes the settings that `reread`
    returns. Raises ConfigError at start only."""
    raise_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:  # in the loop, so not before there is a gateway
        if stop.is_set():
            gateway.cut_connections()
        else:
            stop.set()
            gateway.stop_accepting()

    listen(loop, on_signal, *ENDING)
    gateway = make()
    reloads = Tasks(log, "the settings could not be reloaded, by a fault of the gateway")
    if reread is not None:
        listen(loop, lambda: reloads.spawn(gateway.reload(reread)), signal.SIGHUP)
    try:
        if not await _start_unless(stop, gateway):
            return
        await stop.wait()
    finally:
        await reloads.close()
    log.info(
        "the gateway is shutting down; running answers have %g s, another Ctrl-C cuts them off",
        gateway.settings.timeouts.drain,
    )
    await gateway.close()
    log.info("all components stopped")


async def _start_unless(stop: asyncio.Event, gateway: Served) -> bool:
    """Return whether the gateway has started; False if it was stopped first, with what had been
    opened closed again."""
    starting = asyncio.ensure_future(gateway.start())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        await starting
        return True
    log.info("the gateway was stopped before everything had started")
    starting.cancel()
    await asyncio.wait({starting})
    return False
