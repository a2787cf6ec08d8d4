"""Endpoints that hold a prompt and may not get it: which, and why not."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.model import HolderId
from inferway.routing.journey import Routed
from inferway.routing.limits.outlier_detection import OutlierDetection


@dataclass(frozen=True, slots=True)
class FleetWhereabouts:
    """A recorder's Whereabouts."""

    fleet: Fleet
    standing: OutlierDetection

    def num_endpoints(self) -> int:
        """Return how many there are, whatever they serve and however they are."""
        return sum([len(engine.endpoints) for engine in self.fleet.engines])

    def of(self, holder: HolderId, routed: Routed) -> tuple[str, str] | None:
        """Return the name of an endpoint that was no candidate for the request, and why; None if it
        has left."""
        for engine in self.fleet.engines:
            for endpoint in engine.endpoints:
                if endpoint.holder == holder:
                    return endpoint.name, self._why(engine, routed)
        return None

    def _why(self, engine: Engine, routed: Routed) -> str:
        if engine.name in self.standing.drained:
            return "drained"
        if engine.name in self.standing.ejected:
            return "ejected, after failures"
        if not engine.healthy:
            return "it does not answer"
        if routed.model.name not in engine.model_names:
            return "it does not serve the model"
        return "full, too short a context, or not allowed by a proxy"
