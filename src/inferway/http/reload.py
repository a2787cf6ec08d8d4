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
from functools import partial

import msgspec

from inferway.config import EngineSettings, ServeSettings
from inferway.config.setting import RELOADED, settings_of
from inferway.errors import ConfigError
from inferway.http.auth import Auth, Keys, read_keys
from inferway.http.listening import limits_of
from inferway.http.server import HttpServer
from inferway.upstream.pool import Pool

log = logging.getLogger("inferway.reload")

_TAKEN = frozenset(
    name for name, setting in settings_of(ServeSettings).items() if RELOADED in setting.marks
)


# Go on with what was prepared.
Apply = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Reloading:
    """`settings` are those in force. `relist` is told of the listed engines."""

    settings: ServeSettings
    auth: Auth
    pool: Pool
    servers: Sequence[HttpServer]
    relist: Callable[[Sequence[EngineSettings]], Awaitable[None]]
    # Other processes that serve beside this one are prepared, too; what is returned has them go on
    others: Callable[[ServeSettings], Awaitable[Apply]] | None = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def reload(self, read: Callable[[], ServeSettings]) -> None:
        """The log, and `reloads`, say whether it could be done. `read` may raise ConfigError."""
        counts = self.auth.reloads
        async with self._one_at_a_time:
            try:
                new = read()
                steps = [self.prepare(new)]
                if self.others is not None:
                    steps.append(await self.others(new))
            except ConfigError as e:
                counts["refused"] += 1
                log.error("the settings were not reloaded, and all stays as it was: %s", e)
                return
            old = self.settings
            for step in steps:
                await step()
            counts["done"] += 1
            _tell(old, new)

    def prepare(self, new: ServeSettings) -> Apply:
        """Return what goes on with these settings. Raises ConfigError if they cannot hold; nothing
        has changed then, or until it is called."""
        keys = read_keys(new)
        for engine in new.engines:
            engine.authorization()
        new.read_engine_tls()
        for server in self.servers:
            server.check_tls()
        return partial(self._apply, new, keys)

    async def _apply(self, new: ServeSettings, keys: Keys) -> None:
        for server in self.servers:
            server.reload_tls()
        new.engine_tls()
        auth, old = self.auth, self.settings
        auth.admin_key, auth.callers = keys
        auth.failover.retries.set_settings(new.retries)
        auth.failover.standing.set_settings(new.ejection)
        taken = {name: getattr(new, name) for name in _TAKEN}
        self.settings = msgspec.structs.replace(old, **taken)
        for server in self.servers:
            server.hold_to(limits_of(self.settings), new.timeouts)
        self.pool.timeouts = new.timeouts
        auth.control.set_settings(new.flow)
        if new.engines != old.engines:
            await self.relist(new.engines)


def _tell(old: ServeSettings, new: ServeSettings) -> None:
    """Tell what was done: here, and not by each of several processes."""
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
