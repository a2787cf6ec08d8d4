"""Admissions that know each session's future: what is the most that letting fewer in can win.

None changes what an engine evicts: that is the engine's, least recently used first. They only say
which turns reach it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from inferway_bench.policies.engine import Engine
from inferway_bench.sessions.agents import Agents
from inferway_bench.sessions.run import MakeAdmission, TurnEvent


@dataclass(slots=True)
class Fitting:
    """Sessions enter in the order they came, each once an engine has room for all that it will ever
    hold beside what the others on it will; their turns all go there.

    `fill`: the share of an engine's cache that may be promised. `most_gap`: a session whose tool
    will take longer gives its room back, and has to enter again, before those that are new. Without
    `pins` the policy chooses the engine, and room is only counted for all of them together.
    """

    agents: Agents
    engines: Sequence[Engine]
    fill: float = 1.0
    most_gap: float = math.inf
    pins: bool = True
    peak: bool = True  # room for what it will hold at most; else for what it holds now
    _new: deque[int] = field(default_factory=deque)
    _back: deque[int] = field(default_factory=deque)  # gave its room back
    _ready: list[int] = field(default_factory=list)  # turns of those inside
    _inside: dict[int, tuple[int, int]] = field(default_factory=dict)  # session -> (row, tokens)
    _promised: list[int] = field(default_factory=list)  # tokens, by engine
    _home: dict[int, int] = field(default_factory=dict)  # session -> where it was last

    def __post_init__(self) -> None:
        self._promised = [0] * len(self.engines)

    def arrives(self, turn: TurnEvent) -> None:
        index = turn.index
        session = int(self.agents.session[index])
        if session in self._inside:
            self._ready.append(index)
        elif self.agents.first[index] or session not in self._home:
            self._new.append(index)
        else:
            self._back.append(index)

    def goes(self, now: float) -> Iterator[tuple[int, int | None]]:
        del now
        while self._ready:
            index = self._ready.pop()
            row = self._inside[int(self.agents.session[index])][0]
            yield index, row if self.pins else None
        for line in (self._back, self._new):
            while line:
                place = self._room(line[0])
                if place is None:
                    return
                index = line.popleft()
                self._enter(index, place)
                yield index, place if self.pins else None

    def sent(self, turn: TurnEvent) -> None:
        self._home[int(self.agents.session[turn.index])] = turn.row

    def ended(self, turn: TurnEvent) -> None:
        index = turn.index
        session, agents = int(self.agents.session[index]), self.agents
        if agents.last[index]:
            self._leave(session)
            del self._home[session]
            return
        gap = agents.workload.requests[int(agents.next[index])].think
        if gap > self.most_gap:
            self._leave(session)
        elif not self.peak:
            at, tokens = self._inside[session]
            needed = self._need(int(agents.next[index]))
            self._promised[at] += needed - tokens
            self._inside[session] = (at, needed)

    def wakes(self) -> float:
        return math.inf

    def _need(self, index: int) -> int:
        agents = self.agents
        return int(agents.peak_tokens[index] if self.peak else agents.held_tokens[index])

    def _room(self, index: int) -> int | None:
        need = self._need(index)
        size = self.fill * self.engines[0].spec.cache_tokens
        free = [size - promised for promised in self._promised]
        if not self.pins:
            fits = sum(free) >= need or not self._inside
            return int(np.argmax(free)) if fits else None
        home = self._home.get(int(self.agents.session[index]))
        if home is not None and (free[home] >= need or not self._promised[home]):
            return home
        row = int(np.argmax(free))
        return row if free[row] >= need or not self._promised[row] else None

    def _enter(self, index: int, row: int) -> None:
        need = self._need(index)
        self._inside[int(self.agents.session[index])] = (row, need)
        self._promised[row] += need

    def _leave(self, session: int) -> None:
        row, tokens = self._inside.pop(session)
        self._promised[row] -= tokens


def fitting(
    fill: float = 1.0, most_gap: float = math.inf, *, pins: bool = True, peak: bool = True
) -> MakeAdmission:
    return lambda agents, engines, _: Fitting(agents, engines, fill, most_gap, pins, peak)
