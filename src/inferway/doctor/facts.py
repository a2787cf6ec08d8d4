"""Facts as the doctor's checks found them; `rules` judges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from inferway.config import EngineSettings
from inferway.fleet.engine_facts import EngineFacts
from inferway.model import Alarm


@dataclass(frozen=True, slots=True)
class Socket:
    """One of an engine's ZMQ sockets, tried once."""

    what: str  # events | replay
    endpoint: str
    bind: bool = False  # the engine connects to us; not tried
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SparseCaches:
    """An engine's caches that do not keep every block: of state-space layers and windows."""

    has_states: bool  # state-space (Mamba) layers
    block_size: int  # tokens of a block of the largest kind
    hash_size: int  # tokens between two places where a hit may end
    kept_every: int | None  # tokens; 0: only what is before a prompt's end; None: everything


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The answers of one engine, and what was seen of it."""

    settings: EngineSettings
    health: int | None = None  # status of GET /health
    error: str | None = None  # why it did not answer as an engine
    told: EngineFacts | None = None
    prefix_caching: bool | None = None  # None: it does not say
    takes_tools: bool | None = None  # whether a chat may have tools; None: it does not say
    offloads: bool = False  # by vLLM's OffloadingConnector
    sparse: SparseCaches | None = None  # None: it has none, or does not tell
    sockets: Sequence[Socket] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """The tokenizer that turns a model's requests into tokens here."""

    model: str
    source: str  # directory or hub id, as the engine named it
    error: str | None = None
    own_renderer: str | None = None  # vLLM renders the model's chats in code of its own
    # What the model's template does with a system message among the others: "keeps" it in its
    # place, puts it in "front", "drops" or "refuses" it; None: nothing renders its chats here.
    inline_system: str | None = None


class RequestsByLoad(msgspec.Struct, frozen=True):
    """Requests of a family of clients that went by load."""

    path: str
    client: str
    reason: str
    requests: int


class BrokenTurns(msgspec.Struct, frozen=True):
    """Turns of conversations whose prompts begin to differ too early, and by what."""

    cause: str
    client: str
    turns: int
    in_first_block: int


class ConversationsReport(msgspec.Struct, frozen=True):
    """A sample of conversations (telemetry.conversations has the words)."""

    requests: int
    with_tools: int
    with_inline_system: int
    dated: int
    turns: int
    kept: int
    broken: list[BrokenTurns]


class TrafficReport(msgspec.Struct, frozen=True):
    """The answer of a gateway to /admin/traffic."""

    by_prompt: int
    by_load: list[RequestsByLoad]
    conversations: ConversationsReport


class BreakerFound(msgspec.Struct, frozen=True):
    """One cause that keeps prompts from being reused, at about one place of a model's."""

    model: str
    kind: str
    what: str
    cure: str
    blocks: tuple[int, int]  # the first and the last in which prompts part
    requests: int
    tokens_a_day: int  # that are computed again
    share: float = 0.0  # of the model's prompt tokens, that these are
    last_seconds_ago: float = 0.0


class BreakersReport(msgspec.Struct, frozen=True):
    """The answer of a gateway to /admin/cache-breakers: the most expensive first."""

    looked_at: int
    breakers: list[BreakerFound]


class EventsReport(msgspec.Struct, frozen=True):
    """The answer of /admin/engines on whether a gateway follows its engines' KV events."""

    followed: bool = True
    why: str = ""  # not


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """A running gateway, and what it said of its traffic."""

    url: str
    traffic: TrafficReport | None = None
    prefill_legs: Mapping[tuple[str, str], int] = field(default_factory=dict)  # engine, outcome
    error: str | None = None  # why it has said nothing
    breakers: BreakersReport | None = None  # None: it does not look for them
    events: EventsReport = field(default_factory=EventsReport)
    alarms: Sequence[Alarm] | None = None  # of its page; None: it is older than those

    @property
    def has_tools(self) -> bool:
        """True if requests with tools were seen."""
        return self.traffic is not None and self.traffic.conversations.with_tools > 0

    @property
    def has_inline_system(self) -> bool:
        """True if requests with system messages among the others were seen."""
        return self.traffic is not None and self.traffic.conversations.with_inline_system > 0
