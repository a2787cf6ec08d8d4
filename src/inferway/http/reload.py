"""Settings that change while the gateway runs (SIGHUP).

Engines, keys, limits, the queue, further tries, ejection, timeouts and certificates are as the new
settings say, all of them or, if one of them cannot hold, none. Nothing that is under way notices.
The rest waits for the next start, and the log says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from inferway.config import EngineSettings, ServeSettings
from inferway.errors import ConfigError
from inferway.http.auth import Auth, read_keys
from inferway.http.server import HttpServer
from inferway.upstream.pool import Pool

log = logging.getLogger("inferway.reload")

_TAKEN = frozenset(
    {"engines", "api_keys", "admin_key_env", "limits", "flow", "retries", "ejection", "timeouts"}
)


@dataclass(slots=True)
class Reloading:
    """`settings` are those in force. `relist` is told of the listed engines."""

    settings: ServeSettings
    auth: Auth
    pool: Pool
    servers: Sequence[HttpServer]
    relist: Callable[[Sequence[EngineSettings]], Awaitable[None]]
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def reload(self, read: Callable[[], ServeSettings]) -> None:
        """The log, and `reloads`, say whether it could be done. `read` may raise ConfigError."""
        counts = self.auth.reloads
        async with self._one_at_a_time:
            try:
                await self._apply(read())
            except ConfigError as e:
                counts["refused"] += 1
                log.error("the settings were not reloaded, and all stays as it was: %s", e)
            else:
                counts["done"] += 1

    async def _apply(self, new: ServeSettings) -> None:
        """Raises ConfigError before anything has changed."""
        keys = read_keys(new)
        for engine in new.engines:
            engine.authorization()
        new.read_engine_ca()
        for server in self.servers:
            server.reload_tls()
        new.engine_tls()
        auth, old = self.auth, self.settings
        auth.admin_key, auth.callers = keys
        auth.failover.retries.set_settings(new.retries)
        auth.failover.standing.set_settings(new.ejection)
        for server in self.servers:
            server.limits, server.timeouts = new.limits, new.timeouts
        self.pool.timeouts = new.timeouts
        taken = {name: getattr(new, name) for name in _TAKEN}
        self.settings = msgspec.structs.replace(old, **taken)
        auth.control.set_settings(new.flow)
        if new.engines != old.engines:
            await self.relist(new.engines)
        log.info("the settings were reloaded: engines, keys, limits, timeouts, certificates")
        later = [
            name
            for name in ServeSettings.__struct_fields__
            if name not in _TAKEN and getattr(new, name) != getattr(old, name)
        ]
        if later:
            log.warning(
                "the settings were reloaded, but for what needs a restart: %s",
                ", ".join(later),
            )
