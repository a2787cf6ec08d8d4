"""`session-admission` as the gateway has it, before the simulated fleet."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from inferway.scheduling.session_admission import LiveSessions, SessionAdmissionParameters
from inferway_bench.policies.engine import Engine
from inferway_bench.sessions.agents import Agents
from inferway_bench.sessions.run import MakeAdmission, TurnEvent

_SWEEP = 0.5


@dataclass(slots=True)
class PluginAdmission:
    """Lets sessions in as the plugin does, in the order in which they came."""

    agents: Agents
    engines: Sequence[Engine]
    parameters: SessionAdmissionParameters = field(default_factory=SessionAdmissionParameters)
    live: LiveSessions = field(default_factory=LiveSessions)
    _ready: list[int] = field(default_factory=list)
    _new: deque[tuple[int, float]] = field(default_factory=deque)
    _now: float = 0.0
    _cache: float = 0.0

    def __post_init__(self) -> None:
        self._cache = self.parameters.cache_share * sum(e.spec.cache_tokens for e in self.engines)

    def _name(self, index: int) -> bytes:
        return b"%d" % int(self.agents.session[index])

    def arrives(self, turn: TurnEvent) -> None:
        index, now = turn.index, turn.now
        self._now = now
        if self.live.knows(self._name(index), now):
            self._ready.append(index)
        else:
            self._new.append((index, now))

    def goes(self, now: float) -> Iterator[tuple[int, int | None]]:
        self._now = now
        while self._ready:
            yield self._ready.pop(), None
        while self._new:
            index, came = self._new[0]
            most = self.parameters.max_wait_seconds
            is_let_in = self.live.has_room(self._cache, now) or self.live.is_overdue(
                came, most, now
            )
            if not is_let_in:
                return
            self._new.popleft()
            self.live.enter(self._name(index), now)
            yield index, None

    def sent(self, turn: TurnEvent) -> None:
        prompt = self.agents.workload.columns.prompt_tokens[turn.index]
        self.live.begin(self._name(turn.index), float(prompt), turn.now)

    def ended(self, turn: TurnEvent) -> None:
        held = float(self.agents.held_tokens[turn.index])
        self.live.end(self._name(turn.index), held, turn.now)

    def wakes(self) -> float:
        return self._now + _SWEEP if self._new else math.inf


def admission() -> MakeAdmission:
    return PluginAdmission
