"""The state that an engine is in, as /metrics, /admin/engines, the page and `inferway status` name
it, and since when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from inferway.fleet.engine import Engine
from inferway.routing.limits.circuit_breaker import BreakerState
from inferway.routing.limits.outlier_detection import OutlierDetection


class EngineStanding(StrEnum):
    """The states of an engine; it is in one of them. Those that an outage puts it in have the names
    of `OutageKind`."""

    READY = "ready"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    STALLED = "stalled"
    INVALID = "invalid"
    UNHEARD = "unheard"  # it has not been asked to the end yet
    EJECTED = "ejected"  # it has failed too often
    DRAINED = "drained"  # by an operator, whether it answers or not


def state_of(engine: Engine, standing: OutlierDetection, now: float) -> EngineStanding:
    """Return the engine's state. `now`: by the clock of the failover, as in `since`."""
    if engine.name in standing.drained:
        return EngineStanding.DRAINED
    if not engine.healthy:
        outage = engine.outage
        return EngineStanding.UNHEARD if outage is None else EngineStanding(outage.kind.value)
    if standing.state(engine.name, now) is not BreakerState.CLOSED:
        return EngineStanding.EJECTED
    return EngineStanding.READY


def since(
    engine: Engine, standing: OutlierDetection, drained_since: Mapping[str, float], now: float
) -> float | None:
    """Return when the engine came into its state, by `time.monotonic`; None if that is not
    known."""
    state = state_of(engine, standing, now)
    if state is EngineStanding.DRAINED:
        return drained_since.get(engine.name)
    if state is EngineStanding.EJECTED:
        return standing.breakers[engine.name].since
    if engine.outage is not None:
        return engine.outage.since
    return engine.up_since


def count_states(
    engines: Iterable[Engine], standing: OutlierDetection, now: float
) -> dict[EngineStanding, int]:
    """Return how many engines are in each state; every state is there."""
    found = Counter(state_of(engine, standing, now) for engine in engines)
    return {state: found[state] for state in EngineStanding}
