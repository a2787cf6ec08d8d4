"""The gate over a fleet, as both frontends have it."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

import aiohttp

from inferway.config import ServeSettings
from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.fleet.http_client import EngineConnector, post
from inferway.model import Endpoint
from inferway.routing.structured_gate.build import build_gate
from inferway.routing.structured_gate.gate import Gate
from inferway.routing.structured_gate.warm import PATH

WARM_SECONDS = 20.0  # an engine answers when it has compiled


class FleetGate:
    """`gate` is what the director asks; None if nothing is to be checked. Close it, in the loop in
    which it was used."""

    gate: Gate | None

    def __init__(
        self,
        settings: ServeSettings,
        fleet: Fleet,
        is_busy: Callable[[], bool] = lambda: False,
        on_judged: Callable[[str, bool], None] | None = None,
    ) -> None:
        """`is_busy`: whether engines are not to be told of shapes in advance. `on_judged`: other
        processes are told what has become of a spec. Raises ConfigError."""
        self._posts = _WarmPosts(settings.engine_tls())
        self.gate = build_gate(
            settings.structured,
            FleetEngines(fleet),
            self._posts,
            clock=time.monotonic,
            is_busy=is_busy,
            on_judged=on_judged,
        )

    async def close(self) -> None:
        if self.gate is not None:
            await self.gate.close()
        await self._posts.close()


class FleetEngines:
    """Read from one event loop. An engine that is not in the fleet is not up."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def has_plugin(self, engine: str) -> bool:
        found = self._engine(engine)
        return found is not None and found.facts is not None and found.facts.has_plugin

    def is_up(self, engine: str) -> bool:
        found = self._engine(engine)
        return found is not None and found.healthy

    def num_in_flight(self, engine: str) -> int:
        found = self._engine(engine)
        return 0 if found is None else self._fleet.in_flight(found)

    def _engine(self, name: str) -> Engine | None:
        return self._fleet.engine(name)


class _WarmPosts:
    """POSTs of the warmer; the session opens with the first one."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, endpoint: Endpoint, body: bytes) -> tuple[int, bytes]:
        """Raises UpstreamError."""
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=EngineConnector(self._tls))
        headers = {name.decode(): value.decode() for name, value in endpoint.headers}
        return await post(
            self._session, endpoint.url, PATH, body, headers=headers, seconds=WARM_SECONDS
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
