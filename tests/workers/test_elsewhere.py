"""A stream that a follower follows, as the hub has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import EngineFacts
from inferway.fleet.event_source import EventSource
from inferway.fleet.stream_figures import no_figures
from inferway.kv.events.dialect_finder import DialectState
from inferway.kv.events.groups import CacheFacts
from inferway.kv.events.stream import StreamState
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Store
from inferway.model import Endpoint
from inferway.workers.elsewhere import StreamElsewhere
from inferway.workers.follower_messages import (
    CountNoCopies,
    DialectTold,
    FactsTold,
    FollowedTold,
    FollowerMessage,
    Heard,
    Resync,
)

HOLDER = 3


@dataclass
class Follower:
    """What one is told (`elsewhere.FollowsStreams`)."""

    sent: list[FollowerMessage] = field(default_factory=list)

    def begin(self, stream: StreamElsewhere) -> None: ...
    def end(self, stream: StreamElsewhere) -> None: ...

    def send(self, stream: StreamElsewhere, message: FollowerMessage) -> None:
        del stream
        self.sent.append(message)


@dataclass
class Followed:
    stream: StreamElsewhere
    index: MemoryIndex
    follower: Follower
    states: list[StreamState] = field(default_factory=list)

    def told(self, state: StreamState, **more: object) -> None:
        told = FollowedTold(self.stream.number, state, False, 16, no_figures(), None)
        self.stream.told(msgspec.structs.replace(told, **more))

    def hears(self, *keys: int) -> None:
        self.stream.heard(Heard(self.stream.number, [Store(HOLDER, list(keys))], 1))

    def state(self) -> StreamState:
        return self.stream.state

    @property
    def blocks(self) -> int:
        return self.index.num_blocks(HOLDER)


def followed(max_blocks: int | None = None) -> Followed:
    engine = Engine(EngineSettings(url="http://e"), ())
    source = EventSource(0, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    index, follower = MemoryIndex(max_blocks=max_blocks), Follower()
    endpoint = Endpoint(engine.name, engine.url, HOLDER)
    stream = StreamElsewhere(engine, source, endpoint, index, follower)
    made = Followed(stream, index, follower)
    stream.start(lambda: made.states.append(stream.state))
    stream.order(1)
    return made


def test_what_is_believed_is_stale_while_no_follower_follows() -> None:
    it = followed()
    assert it.state() is StreamState.BLIND
    it.hears(1, 2, 3)
    it.told(StreamState.EXACT)

    it.stream.lost()

    assert it.state() is StreamState.STALE
    assert it.states == [StreamState.EXACT, StreamState.STALE]
    assert it.blocks == 3
    assert not it.stream.may_report


@pytest.mark.parametrize(
    "first",
    [lambda it: it.hears(9), lambda it: it.told(StreamState.BLIND)],
    ids=["an operation", "its state"],
)
def test_what_the_next_follower_tells_first_replaces_what_was_believed(
    first: Callable[[Followed], None],
) -> None:
    it = followed()
    it.hears(1, 2, 3)
    it.told(StreamState.EXACT)
    it.stream.lost()
    it.stream.order(2)
    assert it.state() is StreamState.STALE
    assert it.blocks == 3

    first(it)

    assert it.index.held(HOLDER, [1, 2, 3], 0, 0) == []
    removal = it.stream.removals.of([1], since=0.0)
    assert removal is not None
    assert removal.keys is None  # everything


def test_what_the_first_follower_tells_first_drops_nothing() -> None:
    it = followed()
    it.hears(1)

    assert it.stream.removals.of([1], since=0.0) is None


def test_a_picture_of_which_the_index_has_dropped_blocks_is_partial() -> None:
    it = followed(max_blocks=2)
    it.hears(1, 2)
    it.told(StreamState.EXACT)
    assert it.state() is StreamState.EXACT

    it.hears(3)

    assert it.state() is StreamState.PARTIAL


def test_its_follower_hears_what_is_to_be_done_and_what_the_engine_has_told_since() -> None:
    it = followed()
    it.stream.recheck()
    it.stream.restarted()
    it.stream.count_no_copies()
    it.stream.count_no_copies()  # once is enough
    it.stream.engine.facts = facts = EngineFacts((), (), 2, (), "0.32.0")
    it.stream.tell_facts()
    it.stream.tell_facts()

    assert it.follower.sent == [
        Resync(1),
        Resync(1, has_restarted=True),
        CountNoCopies(1),
        FactsTold(1, facts),
    ]
    assert not it.stream.order(2).counts_copies
    assert it.stream.order(2).facts is facts


def test_its_follower_hears_that_the_engine_drops_the_last_block() -> None:
    it = followed()
    it.stream.engine.facts = EngineFacts((), (), 2, (), "0.32.0")

    it.stream.drops_last_block()

    [told] = it.follower.sent
    assert isinstance(told, FactsTold)
    assert told.facts.cache == CacheFacts(drops_last_block=True)
    assert it.stream.engine.cache_facts.drops_last_block


def test_how_the_engine_hashes_is_known_from_its_follower() -> None:
    it = followed()
    it.told(StreamState.EXACT, dialect=DialectTold(DialectState.NONE, None, "it hashes at random"))

    assert "it hashes at random" in it.stream.engine.problems()
