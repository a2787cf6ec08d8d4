"""What the hub and its followers tell each other, beside what workers are told as well.

The hub tells a follower which event streams are its own, a follower what they have changed in the
index. A stream has another number whenever a process begins to follow it, so that nothing of the
process before is taken for its own.
"""

from __future__ import annotations

import msgspec

from inferway.config import EngineSettings, ServeSettings
from inferway.fleet.engine_facts import EngineFacts
from inferway.fleet.event_source import EventSource
from inferway.fleet.stream_figures import StreamFigures
from inferway.kv.events.dialect_finder import DialectState
from inferway.kv.events.stream import StreamState
from inferway.kv.index.protocol import Op
from inferway.model import Cut, Endpoint
from inferway.workers.messages import (
    AskNumbers,
    Numbers,
    Ping,
    PromptsOffered,
    Publish,
    Ready,
    Suspect,
    Wanted,
)


class _FollowerTold(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The sockets' two ends are of one program: fields are told by their places."""


# hub -> follower


class BeginFollowing(_FollowerTold, frozen=True):
    """The first message."""

    settings: ServeSettings
    publishes: bool  # the hub does, what followers tell


class FollowStream(_FollowerTold, frozen=True):
    """Follow an event stream of the engine."""

    number: int
    settings: EngineSettings
    facts: EngineFacts | None
    source: EventSource
    endpoint: Endpoint
    counts_copies: bool  # False: any removal removes a block (`EngineBlocks.count_no_copies`)


class FollowNoMore(_FollowerTold, frozen=True):
    number: int


class FactsTold(_FollowerTold, frozen=True):
    """What the stream's engine has told of itself since."""

    number: int
    facts: EngineFacts


class Resync(_FollowerTold, frozen=True):
    """Compare with the engine now; `has_restarted`: its process had ended
    (`EventSubscriber.restarted`)."""

    number: int
    has_restarted: bool = False


class CountNoCopies(_FollowerTold, frozen=True):
    """Let any removal remove a block from here on."""

    number: int


# follower -> hub


class Heard(_FollowerTold, frozen=True):
    """What the stream changes in the index, in order. `seq`: of the engine's last batch."""

    number: int
    ops: list[Op]
    seq: int | None


class DialectTold(msgspec.Struct, frozen=True, array_like=True):
    """How the engine hashes its blocks (`fleet.engine.DialectView`)."""

    state: DialectState
    name: str | None
    finding: str | None


class FollowedTold(_FollowerTold, frozen=True):
    """How a stream is."""

    number: int
    state: StreamState
    may_report: bool
    cut_seen: Cut | None
    figures: StreamFigures
    dialect: DialectTold | None


FollowerMessage = (
    BeginFollowing
    | FollowStream
    | FollowNoMore
    | FactsTold
    | Resync
    | CountNoCopies
    | Heard
    | FollowedTold
    | AskNumbers
    | Numbers
    | Ping
    | PromptsOffered
    | Publish
    | Ready
    | Suspect
    | Wanted
)
