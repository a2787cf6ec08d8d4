"""One engine: what was configured, what it told, how it is. Written by `fleet.Fleet` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferway.config import EngineSettings
from inferway.events.stream import StreamState
from inferway.fleet.discovery import EngineFacts, EventSource
from inferway.fleet.load import Load
from inferway.fleet.silent_zero import StreamEvidence
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
        """In tokens: as its events show, else by hand, else as its metrics told."""
        for subscriber in self.subscribers:
            if subscriber.block_size_seen is not None:
                return subscriber.block_size_seen
        return self.block_size_told

    @property
    def block_size_told(self) -> int | None:
        """By hand, else as its metrics told."""
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
    def is_cut_off(self) -> bool:
        """Whether the link of one of its event streams is lost."""
        return any(subscriber.state is StreamState.STALE for subscriber in self.subscribers)

    @property
    def model_names(self) -> list[str]:
        return [card.name for card in self.facts.models] if self.facts else []

    def evidence(self) -> list[StreamEvidence]:
        """What each of its event streams has brought; one without a socket if there is none."""
        if not self.subscribers:
            none = StreamEvidence(engine=self.name, block_size=self.block_size)
            return [none]
        return [
            StreamEvidence(
                engine=self.name,
                connected=True,
                batches=subscriber.stats.batches,
                stored_blocks=subscriber.blocks.stats.stored,
                skipped=sum(subscriber.stats.skipped.values()),
                block_size=self.block_size_told,
                block_size_seen=subscriber.block_size_seen,
                topic=subscriber.last_topic,
                first_tokens=subscriber.blocks.first_tokens,
            )
            for subscriber in self.subscribers
        ]

    def report(self) -> dict[str, Any]:
        """For /ready."""
        return {
            "engine": self.name,
            "healthy": self.healthy,
            "models": self.model_names,
            "block_size": self.block_size,
            "streams": [
                {
                    "endpoint": subscriber.source.endpoint,
                    "replay": subscriber.source.replay,
                    "state": subscriber.state,
                    "batches": subscriber.stats.batches,
                }
                for subscriber in self.subscribers
            ],
            "problems": self.problems(),
        }

    def problems(self) -> list[str]:
        """What is wrong, in words."""
        found = [] if self.healthy else ["it does not answer"]
        if self.facts is not None and self.settings.events is None:
            found += self.facts.findings
        if self.facts is not None and self.block_size is None:
            found.append("its block size is unknown; give block_size=N by hand")
        return found
