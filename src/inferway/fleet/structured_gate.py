"""The gate over a fleet, as both frontends have it."""

from __future__ import annotations

import time
from collections.abc import Callable

from inferway.config import ServeSettings
from inferway.fleet.fleet import Fleet
from inferway.model import Endpoint
from inferway.routing.structured_gate.build import build_gate
from inferway.routing.structured_gate.gate import Gate
from inferway.routing.structured_gate.warm import PATH

WARM_SECONDS = 20.0  # an engine answers when it has compiled


def fleet_gate(
    settings: ServeSettings,
    fleet: Fleet,
    is_busy: Callable[[], bool] = lambda: False,
    on_judged: Callable[[str, bool], None] | None = None,
) -> Gate | None:
    """Return what the director asks; None if nothing is to be checked. Close it in the loop in
    which it was used. `is_busy`: whether engines are not to be told of shapes in advance.
    `on_judged`: other processes are told what has become of a spec. Raises ConfigError."""

    async def post(endpoint: Endpoint, body: bytes) -> tuple[int, bytes]:
        return await fleet.client.post(endpoint.url, PATH, body, endpoint.headers, WARM_SECONDS)

    return build_gate(
        *(settings.structured, FleetEngines(fleet), post),
        clock=time.monotonic,
        is_busy=is_busy,
        on_judged=on_judged,
        state_dir=settings.state_dir,
    )


class FleetEngines:
    """The fleet's, as `Gate` asks for them. One that is not in the fleet is not up."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def has_plugin(self, engine: str) -> bool:
        found = self._fleet.engine(engine)
        return found is not None and found.facts is not None and found.facts.has_plugin

    def is_up(self, engine: str) -> bool:
        found = self._fleet.engine(engine)
        return found is not None and found.healthy

    def num_in_flight(self, engine: str) -> int:
        found = self._fleet.engine(engine)
        return 0 if found is None else self._fleet.in_flight(found)
