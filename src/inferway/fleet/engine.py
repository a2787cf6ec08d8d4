"""One engine: what was configured, what it told, how it is. Written by `fleet.Fleet` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inferway.config import EngineSettings
from inferway.fleet.discovery import EngineFacts, EventSource
from inferway.fleet.load import Load
from inferway.fleet.subscriber import EventSubscriber
from inferway.model import Endpoint, Headers

# An engine that computes on the CPU may leave its metrics unanswered for seconds: a refused
# connection means that it is gone at once, silence only after this many scrapes.
SILENT_SCRAPES = 6


@dataclass(slots=True)
class Engine:
    """One engine of the fleet."""

    settings: EngineSettings
    headers: Headers
    facts: EngineFacts | None = None
    healthy: bool = False
    warned: bool = False  # its absence is in the log already
    failures: int = 0  # scrapes in a row that got no answer
    load: Load = field(default_factory=lambda: Load(0.0, 0.0, 0.0))
    endpoints: list[Endpoint] = field(default_factory=list)
    subscribers: list[EventSubscriber] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.settings.label

    @property
    def url(self) -> str:
        return self.settings.url.rstrip("/")

    @property
    def http_headers(self) -> Mapping[str, str]:
        return {name.decode(): value.decode() for name, value in self.headers}

    @property
    def block_size(self) -> int | None:
        """In tokens: by hand, else as the engine told."""
        if self.settings.block_size is not None:
            return self.settings.block_size
        return self.facts.block_size if self.facts else None

    @property
    def sources(self) -> Sequence[EventSource]:
        """Event sockets: by hand, else as the engine told. A wildcard by hand means: we bind."""
        by_hand = self.settings.events
        if by_hand is not None:
            bind = "*" in by_hand
            return (EventSource(0, by_hand, self.settings.replay, bind=bind),)
        return self.facts.sources if self.facts else ()

    @property
    def model_names(self) -> list[str]:
        return [card.name for card in self.facts.models] if self.facts else []
