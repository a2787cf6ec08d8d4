"""`session-admission` and the gate that the gateway has for it, before the simulated fleet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from inferway.routing.limits.queue import Waiter
from inferway.routing.limits.session_gate import SessionGate
from inferway.scheduling.session_admission import SessionAdmission
from inferway_bench.policies.catalog import configured
from inferway_bench.policies.engine import Engine
from inferway_bench.policies.gateway import Policy, endpoints_of
from inferway_bench.policies.requests import MODEL
from inferway_bench.policies.simulate import World
from inferway_bench.sessions.agents import Agents
from inferway_bench.sessions.run import TurnEvent

_SWEEP = 0.5


def with_sessions(world: World) -> Policy:
    """Return expected-ttft, with sessions that stay at their engines."""
    return configured(world, {"expected-ttft": 1.0, "session-admission": 1.0})


def admission(agents: Agents, engines: Sequence[Engine], policy: Policy) -> PluginAdmission:
    """Return who lets sessions in, as the plugin of that policy says."""
    (plugin,) = [each for each in policy.following if isinstance(each, SessionAdmission)]
    names = [each.name for each in endpoints_of(len(engines))]
    sizes = {
        name: float(engine.spec.cache_tokens) for name, engine in zip(names, engines, strict=True)
    }
    return PluginAdmission(agents, SessionGate(plugin, lambda _: sizes))


@dataclass(slots=True)
class PluginAdmission:
    """Lets sessions in as the gate does. What turns do the plugin hears as in the gateway."""

    agents: Agents
    gate: SessionGate
    _ready: list[int] = field(default_factory=list)
    _waiting: dict[Waiter, int] = field(default_factory=dict)
    _now: float = 0.0

    def arrives(self, turn: TurnEvent) -> None:
        index, self._now = turn.index, turn.now
        name = b"%d" % int(self.agents.session[index])
        if self.gate.enters(MODEL, name, turn.now):
            self._ready.append(index)
            return
        waiter = Waiter(MODEL, "", 0, math.inf, turn.now)
        self.gate.wait(waiter, name)
        self._waiting[waiter] = index

    def goes(self, now: float) -> Iterator[tuple[int, int | None]]:
        self._now = now
        while self._ready:
            yield self._ready.pop(), None
        for waiter in self.gate.turns(now):
            yield self._waiting.pop(waiter), None

    def sent(self, turn: TurnEvent) -> None: ...
    def ended(self, turn: TurnEvent) -> None: ...

    def wakes(self) -> float:
        return self._now + _SWEEP if self._waiting else math.inf
