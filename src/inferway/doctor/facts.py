"""What was looked at, as it was found: `rules` judges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inferway.config import EngineSettings
from inferway.fleet.engine_facts import EngineFacts


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python interpreter that runs us."""

    version: tuple[int, int, int]
    executable: str


@dataclass(frozen=True, slots=True)
class Packages:
    """Our dependencies: version by name of those that import, the error of those that do not."""

    versions: Mapping[str, str]
    errors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cache:
    """The directory that prepared models are in."""

    directory: str
    write_error: str | None


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub that tokenizers and templates come from."""

    url: str
    offline: bool = False  # HF_HUB_OFFLINE is set; the hub was not asked
    has_token: bool = False
    status: int | None = None  # of the answer: /api/whoami-v2 if there is a token
    error: str | None = None  # why there was no answer


@dataclass(frozen=True, slots=True)
class Port:
    """The port that the gateway would listen on."""

    wanted: str  # as HTTP_PORT has it
    error: str | None


@dataclass(frozen=True, slots=True)
class Socket:
    """One of an engine's ZMQ sockets, tried once."""

    what: str  # events | replay
    endpoint: str
    bind: bool = False  # the engine connects to us; not tried
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What one engine said, and what was seen of it."""

    settings: EngineSettings
    health: int | None = None  # status of GET /health
    error: str | None = None  # why it did not answer as an engine
    told: EngineFacts | None = None
    prefix_caching: bool | None = None  # None: it does not say
    offloads: bool = False  # by vLLM's OffloadingConnector
    sockets: Sequence[Socket] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """What turns a model's requests into tokens here."""

    model: str
    source: str  # directory or hub id, as the engine named it
    error: str | None = None
    own_renderer: str | None = None  # vLLM renders the model's chats in code of its own
