"""The fleet -> lines of record files: its engines, and what has changed since the last line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from inferway.fleet.engine import Engine
from inferway.fleet.fleet import Fleet
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.scheduling.scheduling import Scheduling
from inferway_console.records.files import FleetLine

COSTS_SECONDS = 60.0  # between two looks at what was learned
_COSTS = "inferway_expected_cost_seconds"
_UP, _DOWN, _DRAINED, _EJECTED = "up", "down", "drained", "ejected"
_UP_FROM = {_DOWN: "up", _DRAINED: "undrained", _EJECTED: "back"}


class FleetLines:
    """Looks when it is asked. `at` is Unix time."""

    def __init__(self, fleet: Fleet, standing: OutlierDetection, scheduling: Scheduling) -> None:
        self._fleet = fleet
        self._standing = standing
        self._scheduling = scheduling
        self._seen: dict[str, FleetLine] = {}
        self._costs_at = 0.0

    def now(self, at: float) -> list[FleetLine]:
        """Return a line for each engine, and one for what was learned of each endpoint."""
        return [*self._engines(at).values(), *self._costs(at)]

    def changes(self, at: float) -> list[FleetLine]:
        """Return what has changed since the last call: all, with the first one."""
        before, self._seen = self._seen, self._engines(at)
        found = []
        for name, line in self._seen.items():
            old = before.get(name)
            if old is None or _facts(old) != _facts(line):
                found.append(line)
            elif old.state != line.state:
                event = _UP_FROM[old.state] if line.state == _UP else line.state
                found.append(FleetLine(at, event, name, state=line.state))
        found += [FleetLine(at, "left", name) for name in before if name not in self._seen]
        if at - self._costs_at >= COSTS_SECONDS:
            self._costs_at = at
            found += self._costs(at)
        return found

    def _engines(self, at: float) -> dict[str, FleetLine]:
        return {engine.name: self._line(engine, at) for engine in self._fleet.engines}

    def _line(self, engine: Engine, at: float) -> FleetLine:
        facts = engine.facts
        return FleetLine(
            at,
            "joined",
            engine.name,
            state=self._state(engine),
            models=tuple(engine.model_names[:16]),
            endpoints=tuple(endpoint.name for endpoint in engine.endpoints),
            block_size=engine.block_size,
            cache_blocks=None if facts is None else facts.cache_blocks,
            version=None if facts is None else facts.version,
        )

    def _state(self, engine: Engine) -> str:
        if engine.name in self._standing.drained:
            return _DRAINED
        if engine.name in self._standing.ejected:
            return _EJECTED
        return _UP if engine.healthy else _DOWN

    def _costs(self, at: float) -> Iterator[FleetLine]:
        costs: dict[str, dict[str, float]] = {}
        for family in self._scheduling.families():
            if family.name == _COSTS:
                for sample in family.samples:
                    of = costs.setdefault(sample.labels["engine"], {})
                    of[sample.labels["of"]] = float(f"{sample.value * 1000:.6g}")
        for name, learned in costs.items():
            yield FleetLine(at, "costs", name, costs=learned)


def _facts(line: FleetLine) -> Mapping[str, object]:
    return msgspec.structs.asdict(msgspec.structs.replace(line, at=0.0, state=""))
