"""Gateways that tell each other, without sockets: what one sends is handed to the others by the
test, or is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from inferway.cluster.bus.inbox import Inbox
from inferway.cluster.bus.outbox import Outbox
from inferway.cluster.bus.peer import Peer
from inferway.config import EngineSettings
from inferway.fleet.elsewhere import OwnCounts
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import EngineFacts, ModelCard
from inferway.fleet.table import EndpointTable
from inferway.kv.index.memory import MemoryIndex
from inferway.scheduling.expected_ttft.backlog import QueuedRequest
from inferway.scheduling.expected_ttft.learning import Learning
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import Event

NAMES = ("a", "b", "c")


def engine(name: str) -> Engine:
    """One that is well."""
    settings = EngineSettings(url=f"http://{name}:1", name=name)
    facts = EngineFacts((ModelCard("m", None, None, None),), (), 16, ())
    return Engine(settings, (), facts, healthy=True)


def table(names: Sequence[str] = NAMES) -> EndpointTable:
    engines = [engine(name) for name in names]
    made = EndpointTable(engines, MemoryIndex())
    for each in engines:
        each.endpoints = [made.add(each, None)]
    made.set_serving({"m": engines})
    return made


@dataclass(eq=False)
class Gateway:
    """`ahead`: by so much its clock differs. Its endpoints are in an order of its own."""

    number: int
    ahead: float = 0.0
    names: Sequence[str] = NAMES
    plugin: ExpectedTtft = field(default_factory=ExpectedTtft)
    waiting: list[QueuedRequest] = field(default_factory=list)
    under_way: list[str] = field(default_factory=list)  # endpoints, by request
    coming: list[str] = field(default_factory=list)
    peers: dict[int, Peer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = table(self.names)
        self.endpoints = {each.name: each for each in self.table.candidates("m").endpoints}
        self.plugin.slots.rows(list(self.endpoints.values()), 0.0)
        self.sharing = self.plugin.share(self._tell)
        self.inbox = Inbox([self.sharing])
        self.outbox = Outbox(
            self.number, f"gateway {self.number}", OwnCounts(self.table), 1, self.inbox.known
        )

    def _tell(self, event: Event) -> None:
        self.outbox.tell(0, event)

    @property
    def learning(self) -> Learning:
        return self.plugin.learning

    def clock(self, now: float) -> float:
        return now + self.ahead

    # what it does

    def send(self, name: str, tokens: float, now: float) -> None:
        self.table.book(self.endpoints[name], int(tokens))
        self.under_way.append(name)
        waiting = QueuedRequest(self.plugin.slots.slot_of(name, now), tokens, tokens / 2)
        self.waiting.append(waiting)
        self.learning.waits(
            waiting, self.clock(now), work=tokens, new_tokens=tokens, prompt_tokens=2 * tokens
        )

    def begin(self, which: int, now: float) -> None:
        if self.waiting:
            waiting = self.waiting.pop(which % len(self.waiting))
            self.learning.begun(waiting, self.clock(now))

    def assume(self, which: int, now: float, seconds: float) -> None:
        """The answer will begin then: nobody will tell."""
        if self.waiting:
            waiting = self.waiting.pop(which % len(self.waiting))
            self.learning.assume_begun_at(waiting, self.clock(now) + seconds)

    def end(self, which: int) -> None:
        if self.under_way:
            name = self.under_way.pop(which % len(self.under_way))
            self.table.release(self.endpoints[name])

    def come(self, name: str) -> None:
        self.coming.append(name)
        self.learning.comes(self.plugin.slots.slot_of(name, 0.0), 1.0)

    def arrive(self) -> None:
        if self.coming:
            name = self.coming.pop()
            self.learning.comes(self.plugin.slots.slot_of(name, 0.0), -1.0)

    # what it hears

    def hear(self, other: int, payload: bytes, now: float) -> None:
        peer = self.peers.get(other)
        if peer is None:
            peer = self.peers[other] = Peer(f"{other}", self.table, self.inbox)
        peer.hear(payload, self.clock(now))

    def says(self, now: float) -> list[bytes]:
        """What it tells now."""
        return list(self.outbox.messages(self.clock(now)))

    def says_all(self, now: float, *, whole: bool = False) -> list[bytes]:
        """What it tells once a second."""
        told = self.says(now)
        self.outbox.begin_round(self.names, whole=whole)
        while self.outbox.has_more:
            told += self.says(now)
        return told

    # what it believes, of all

    def believes(self, now: float) -> dict[str, list[float]]:
        """By endpoint, in the order of NAMES."""
        learning = self.learning
        learning.advance(self.clock(now))
        slots = [self.plugin.slots.slot_of(name, 0.0) for name in NAMES]
        holders = [self.endpoints[name].holder for name in NAMES]
        rows = self.table.candidates("m")
        return {
            "tokens": np.round(learning.backlog.tokens[slots], 3).tolist(),
            "waiting": learning.backlog.requests[slots].tolist(),
            "coming": learning.coming[slots].tolist(),
            "in flight": rows.in_flight[holders].tolist(),
        }
