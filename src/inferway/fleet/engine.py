"""One engine: what was configured, what it told, how it is. Written by `fleet.Fleet` alone, but
for what the probe has found out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from inferway.config import EngineSettings
from inferway.fleet.engine_facts import EngineFacts, EventSource, ModelCard, given_source
from inferway.fleet.kv_transfer import side_channel_finding
from inferway.fleet.load import Load
from inferway.fleet.silent_zero import StreamEvidence
from inferway.fleet.subscriber import EventSubscriber
from inferway.kv.events.dialect_finder import DialectFinder
from inferway.kv.events.stream import StreamState
from inferway.model import Endpoint, Headers, KvTransfer
from inferway.prompts.served import ModelSource

# An engine that computes on the CPU may leave its metrics unanswered for seconds: a refused
# connection means that it is gone at once, silence only after this many scrapes.
SILENT_SCRAPES = 6


class ProofState(StrEnum):
    """Whether an engine renders a model's prompts as we do."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNPROVEN = "unproven"


@dataclass(slots=True)
class ProbeState:
    """The findings of the probe about one engine and model. Written by `prober` alone."""

    state: ProofState = ProofState.UNPROVEN
    why: str = "it has not been asked"  # empty if it agrees
    messages: ProofState = ProofState.UNPROVEN  # whether it counts messages' tokens as we do
    messages_why: str = ""  # how it differs
    live: str | None = None  # how a live prompt differed
    live_left: int = 0  # how many more must agree until that is over
    told: set[str] = field(default_factory=set)  # what the log has already
    live_told: set[str] = field(default_factory=set)

    @property
    def fault(self) -> str | None:
        """The reason why the model must not be routed by what we render; None if it may."""
        return self.why if self.state is ProofState.DIFFERS else self.live


@dataclass(slots=True)
class Engine:
    """An engine of the fleet, as it was configured, as it tells, and as it is."""

    settings: EngineSettings
    headers: Headers
    facts: EngineFacts | None = None
    healthy: bool = False
    warned: bool = False  # its absence is in the log already
    failures: int = 0  # scrapes in a row that got no answer
    looked: float = 0.0  # when it was last asked what it is, by the loop's clock
    load: Load = field(default_factory=Load)
    endpoints: list[Endpoint] = field(default_factory=list)
    subscribers: list[EventSubscriber] = field(default_factory=list)
    offers: dict[str, ModelSource] = field(default_factory=dict)  # by model; `served_models` writes
    proofs: dict[str, ProbeState] = field(default_factory=dict)  # by base model
    dialects: dict[int, DialectFinder] = field(default_factory=dict)  # by rank; `adoption` writes

    @property
    def name(self) -> str:
        return self.settings.label

    @property
    def url(self) -> str:
        return self.settings.http_url

    @property
    def http_headers(self) -> Mapping[str, str]:
        return {name.decode(): value.decode() for name, value in self.headers}

    @property
    def block_size(self) -> int | None:
        """The block size in tokens: as its events show, else by hand, else as its metrics told."""
        for subscriber in self.subscribers:
            if subscriber.block_size_seen is not None:
                return subscriber.block_size_seen
        return self.block_size_told

    @property
    def block_size_told(self) -> int | None:
        """The block size in tokens by hand, else as its metrics told."""
        if self.settings.block_size is not None:
            return self.settings.block_size
        return self.facts.block_size if self.facts else None

    @property
    def sources(self) -> Sequence[EventSource]:
        """The sources of its events: by hand, else as the engine told."""
        given = given_source(self.settings)
        if given is not None:
            return (given,)
        return self.facts.sources if self.facts else ()

    @property
    def ranks(self) -> list[int | None]:
        """The ranks of its endpoints: its data-parallel ranks, if it lets us choose one."""
        ranks: list[int | None] = [source.rank for source in self.sources]
        return ranks if len(ranks) > 1 else [None]

    @property
    def kv_transfer(self) -> KvTransfer | None:
        """How it hands KV blocks to others; None if it is not known to."""
        return self.endpoints[0].kv_transfer if self.endpoints else None

    @property
    def is_cut_off(self) -> bool:
        """Whether the connection of one of its event streams is lost."""
        return any(subscriber.state is StreamState.STALE for subscriber in self.subscribers)

    @property
    def _cards(self) -> Sequence[ModelCard]:
        return self.facts.models if self.facts is not None else ()

    @property
    def model_names(self) -> list[str]:
        return [card.name for card in self._cards]

    @property
    def base_models(self) -> Sequence[ModelCard]:
        """The names of the engine's own model, without adapters."""
        return self.facts.base_models if self.facts is not None else ()

    @property
    def max_model_len(self) -> int | None:
        """The engine's context in tokens, the same under all its names; None if it has not told."""
        return next((card.max_model_len for card in self.base_models), None)

    def adapter_path(self, name: str) -> str | None:
        """Return where it has an adapter from; None if it has not told."""
        return None if self.facts is None else self.facts.adapter_paths.get(name)

    def evidence(self) -> list[StreamEvidence]:
        """Return what each of its event streams has brought; one without a socket if there is
        none."""
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

    def stream(self, endpoint: Endpoint) -> EventSubscriber | None:
        """Return the stream that tells of this endpoint; None if none does."""
        for subscriber in self.subscribers:
            if subscriber.holder == endpoint.holder:
                return subscriber
        return None

    def report(self) -> dict[str, Any]:
        """Return what /ready shows of it."""
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
            "probes": self.probe_report(),
            "problems": self.problems(),
        }

    def probe_report(self) -> dict[str, Any]:
        """Return, by model, whether it renders as we do."""
        return {
            model: {"state": proof.state, "why": proof.fault or proof.why}
            for model, proof in self.proofs.items()
        }

    @property
    def findings(self) -> list[str]:
        """What it tells that cannot be used, in sentences with their cures."""
        if self.facts is None:
            return []
        side_channel = side_channel_finding(self.settings, self.facts)
        found = list(self.facts.findings) if self.settings.events is None else []
        return found if side_channel is None else [*found, side_channel]

    def problems(self) -> list[str]:
        """Return sentences that say what is wrong."""
        found = [] if self.healthy else ["it does not answer"]
        found += self.findings
        if self.facts is not None and self.block_size is None:
            found.append("its block size is unknown; give block_size=N by hand")
        findings = [finder.finding for finder in self.dialects.values()]
        found += dict.fromkeys(finding for finding in findings if finding is not None)
        for model, proof in self.proofs.items():
            if proof.fault is not None:
                found.append(f"it renders prompts of {model!r} otherwise than we do: {proof.fault}")
            elif proof.messages is ProofState.DIFFERS:
                found.append(f"it renders messages to {model!r} otherwise: {proof.messages_why}")
        return found
