"""One engine: what was configured, what it told, how it is. Written by `fleet.Fleet` alone, but
for what the probe has found out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from inferway.config import EngineSettings
from inferway.fleet.engine_facts import EngineFacts, FactsAge, ModelCard, given_source
from inferway.fleet.event_source import EventSource
from inferway.fleet.kv_transfer import side_channel_finding
from inferway.fleet.liveness import Liveness
from inferway.fleet.load import Load
from inferway.fleet.outage import Outage, OutageKind, outage_words
from inferway.fleet.stream_figures import StreamEvidence
from inferway.kv.events.groups import DROPPING, NO_FACTS, CacheFacts
from inferway.kv.events.removals import Removals
from inferway.kv.events.stream import StreamState
from inferway.model import Cut, Endpoint, Headers, HolderId, KvTransfer, TokenIds, block_size_of
from inferway.prompts.scoring_input import NO_POOLING, PoolingFacts
from inferway.prompts.served import ModelSource
from inferway.routing.limits.suspension import Suspension

if TYPE_CHECKING:
    from inferway.fleet.subscriber import EventSubscriber
    from inferway.kv.events.dialect_finder import DialectFinder


class ProofState(StrEnum):
    """The verdict on an engine: it renders a model's prompts as we do, or does not, or unproven."""

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
    pooling: PoolingFacts = NO_POOLING  # what it makes of prompts that it answers no chat of
    told: set[str] = field(default_factory=set)  # what the log has already
    live_told: set[str] = field(default_factory=set)

    @property
    def is_settled(self) -> bool:
        """True if the engine is not asked again by itself."""
        return self.state is ProofState.AGREES

    @property
    def fault(self) -> str | None:
        """The reason why the model must not be routed by what we render; None if it may."""
        return self.why if self.state is ProofState.DIFFERS else self.live


class StreamView(Protocol):
    """An event stream, as those see it who do not follow it themselves: in one process it is the
    `subscriber.EventSubscriber`, in a worker what the hub tells of that."""

    removals: Removals  # that the engine has told of, of late

    @property
    def source(self) -> EventSource: ...

    @property
    def holder(self) -> HolderId: ...

    @property
    def state(self) -> StreamState:
        """The state of the picture of the engine's cache: how true it is."""

    @property
    def cut_seen(self) -> Cut | None:
        """The cut of prompts that the engine's events show; None before the first event."""

    @property
    def may_report(self) -> bool:
        """True if a report of what the engine reuses would tell something that is not known, and
        nothing wrong (`fleet.FullReporter`)."""

    def evidence(self) -> StreamEvidence:
        """Return what the stream has brought, without what its engine is."""

    def drops_last_block(self) -> None:
        """Take note that the engine's answers show that it drops the last block it matches."""

    def recheck(self) -> None:
        """Compare with the engine now, because something does not add up; unless that would cost
        all that is believed."""

    def count_no_copies(self) -> None:
        """Let any removal remove a block from here on (`EngineBlocks.count_no_copies`)."""


@dataclass(slots=True)
class Engine:
    """An engine of the fleet, as it was configured, as it tells, and as it is."""

    settings: EngineSettings
    headers: Headers
    facts: EngineFacts | None = None
    healthy: bool = False
    outage: Outage | None = None  # why it is not healthy; None: it is, or has not been asked yet
    up_since: float | None = None  # when it answered first, or again, by `time.monotonic`
    suspension: Suspension | None = None  # why it gets no requests although it is well
    suspended_since: float | None = None  # by `time.monotonic`; None: it is not
    warned: bool = False  # its absence is in the log already
    failures: int = 0  # scrapes in a row that got no answer
    liveness: Liveness = field(default_factory=Liveness)
    looked: float = 0.0  # when it was last asked what it is, by the loop's clock
    facts_age: FactsAge = field(default_factory=FactsAge)
    load: Load = field(default_factory=Load)
    load_page: str | None = None  # that `load` was read from, if it is short
    endpoints: list[Endpoint] = field(default_factory=list)
    subscribers: list[EventSubscriber] = field(default_factory=list)
    followed: list[StreamView] = field(default_factory=list)  # of streams that the hub follows
    offers: dict[str, ModelSource] = field(default_factory=dict)  # by model; `served_models` writes
    proofs: dict[str, ProbeState] = field(default_factory=dict)  # by base model
    dialects: dict[int, DialectFinder] = field(default_factory=dict)  # by rank
    # prompts that the prober has sent there; the orphans' resolver takes them
    probed: deque[TokenIds] = field(default_factory=lambda: deque(maxlen=64))
    _cache_facts: CacheFacts = NO_FACTS
    _cache_facts_of: tuple[EngineFacts | None] | None = None  # the `facts` they are made of

    @property
    def name(self) -> str:
        return self.settings.label

    @property
    def url(self) -> str:
        return self.settings.http_url

    @property
    def block_size(self) -> int | None:
        """The block size in tokens: as its events show, else by hand, else as its metrics told."""
        cut = self.cut
        return None if cut is None else block_size_of(cut)

    @property
    def cut(self) -> Cut | None:
        """The cut of prompts for the engine: as its events show, else by its block size."""
        for stream in self.streams:
            if stream.cut_seen is not None:
                return stream.cut_seen
        return self.block_size_told

    @property
    def cache_facts(self) -> CacheFacts:
        """The facts of the engine's KV caches that its events lack: by hand, else as it told or was
        seen. The same object as long as nothing has changed: every batch of events asks."""
        made_of = self._cache_facts_of
        if made_of is None or made_of[0] is not self.facts:
            self._cache_facts_of = (self.facts,)
            facts = self._make_cache_facts()
            if facts != self._cache_facts:
                self._cache_facts = facts
        return self._cache_facts

    def _make_cache_facts(self) -> CacheFacts:
        told, settings = self.facts.cache if self.facts else NO_FACTS, self.settings
        drops = told.drops_last_block
        if settings.speculation is not None:
            drops = settings.speculation in DROPPING
        return CacheFacts(
            drops,
            told.draft_groups,
            settings.attention_chunk_size or told.chunk,
            settings.prefix_match_unit or told.hash_size,
            self.block_size_told or 0,
        )

    @property
    def block_size_told(self) -> int | None:
        """The block size in tokens by hand, else as its metrics told."""
        if self.settings.block_size is not None:
            return self.settings.block_size
        return self.facts.block_size if self.facts else None

    @property
    def cache_tokens(self) -> int | None:
        """The tokens that the cache of each of its endpoints holds; None if it has not told."""
        facts, size = self.facts, self.block_size
        if facts is None or facts.cache_blocks is None or size is None:
            return None
        return facts.cache_blocks * size

    @property
    def sources(self) -> Sequence[EventSource]:
        """The sources of its events: by hand, else as the engine told."""
        given = given_source(self.settings)
        if given is not None:
            return (given,)
        return self.facts.sources if self.facts else ()

    @property
    def streams(self) -> Sequence[StreamView]:
        """The streams of its events, whoever follows them."""
        return self.subscribers or self.followed

    @property
    def ranks(self) -> list[int | None]:
        """The ranks of its endpoints: its data-parallel ranks, if it lets us choose one."""
        ranks: list[int | None] = [source.rank for source in self.sources]
        return ranks if len(ranks) > 1 else [None]

    @property
    def kv_transfer(self) -> KvTransfer | None:
        """The way in which the engine hands KV blocks to others; None if it is not known to."""
        return self.endpoints[0].kv_transfer if self.endpoints else None

    @property
    def is_cut_off(self) -> bool:
        """True if the connection of one of the engine's event streams is lost."""
        return any(stream.state is StreamState.STALE for stream in self.streams)

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

    @property
    def is_stalled(self) -> bool:
        """True if the engine is out because its core computes nothing, although its API answers."""
        return self.outage is not None and self.outage.kind is OutageKind.STALLED

    def take_over(
        self,
        facts: EngineFacts | None,
        healthy: bool,
        outage: Outage | None,
        load: Load,
        *,
        endpoints: list[Endpoint],
        proofs: dict[str, ProbeState],
        followed: list[StreamView],
    ) -> None:
        """Take over what the process tells that follows the engines."""
        self.facts, self.healthy, self.outage, self.load = facts, healthy, outage, load
        self.endpoints, self.proofs, self.followed = endpoints, proofs, followed

    def drops_last_block(self) -> None:
        """Take note that its answers show that it drops the last block it matches."""
        if self.facts is not None:
            cache = msgspec.structs.replace(self.facts.cache, drops_last_block=True)
            self.facts = replace(self.facts, cache=cache)

    def adapter_path(self, name: str) -> str | None:
        """Return where it has an adapter from; None if it has not told."""
        return None if self.facts is None else self.facts.adapter_paths.get(name)

    def evidence(self) -> list[StreamEvidence]:
        """Return what each of its event streams has brought; one without a socket if there is
        none."""
        if not self.streams:
            return [StreamEvidence(engine=self.name, block_size=self.block_size)]
        size = self.block_size_told
        found = [stream.evidence() for stream in self.streams]
        return [replace(each, engine=self.name, block_size=size) for each in found]

    def has_told_since(self, when: float) -> bool:
        """Return whether an event of its streams has been read since, by the loop's clock."""
        for stream in self.subscribers:
            if stream.last_batch_at is not None and stream.last_batch_at > when:
                return True
        return False

    def stream(self, endpoint: Endpoint) -> StreamView | None:
        """Return the stream that tells of this endpoint; None if none does."""
        return next((each for each in self.streams if each.holder == endpoint.holder), None)

    def subscriber(self, endpoint: Endpoint) -> EventSubscriber | None:
        """Return who follows the stream that tells of this endpoint; None if nobody does here."""
        return next((each for each in self.subscribers if each.holder == endpoint.holder), None)

    def compare_events(self) -> None:
        """Have what is believed of its cache compared with it, now that it answers again; what a
        process held that has ended is forgotten at once."""
        has_ended = self.outage is not None and self.outage.is_refused
        for subscriber in self.subscribers:
            if has_ended:
                subscriber.restarted()
            else:
                subscriber.resync()

    def outage_report(self, now: float) -> dict[str, Any] | None:
        """Return what is told of its outage; None if it has none. `now`: by `time.monotonic`."""
        outage = self.outage
        if outage is None:
            return None
        return {
            "kind": outage.kind,
            "since": _iso(outage.since, now),
            "seconds": round(now - outage.since, 1),
            "last_heard": None if outage.heard is None else _iso(outage.heard, now),
            "error": outage.error,
        }

    def _outage_words(self, now: float) -> str:
        if self.outage is None:
            return "it has not answered yet"
        return f"it {outage_words(self.outage, now, time.time())}"

    def report(self) -> dict[str, Any]:
        """Return what /ready shows of it."""
        now = time.monotonic()
        since = self.up_since if self.outage is None else self.outage.since
        return {
            "engine": self.name,
            "healthy": self.healthy,
            "since": None if since is None else _iso(since, now),
            "outage": self.outage_report(now),
            "suspension": self.suspension,
            "models": self.model_names,
            "block_size": self.block_size,
            "streams": [
                {
                    "endpoint": subscriber.source.endpoint,
                    "replay": subscriber.source.replay,
                    "state": subscriber.state,
                    "batches": subscriber.figures.stats.batches,
                }
                for subscriber in self.subscribers
            ],
            "probes": self.probe_report(),
            "problems": self.problems(now),
        }

    def probe_report(self) -> dict[str, Any]:
        """Return, by model, whether it renders as we do."""
        return {
            model: {"state": proof.state, "why": proof.fault or proof.why}
            for model, proof in self.proofs.items()
        }

    @property
    def findings(self) -> list[str]:
        """The faults in what the engine tells, in sentences with their cures."""
        if self.facts is None:
            return []
        side_channel = side_channel_finding(self.settings, self.facts)
        found = list(self.facts.findings) if self.settings.events is None else []
        return found if side_channel is None else [*found, side_channel]

    def problems(self, now: float | None = None) -> list[str]:
        """Return sentences that say what is wrong. `now`: as `Outage.words` has it; None: at this
        moment."""
        left = [self._outage_words(time.monotonic() if now is None else now)]
        newer = self.facts.newer_than_known if self.facts is not None else None
        return [
            *([] if self.healthy else left),
            *self.faults(),
            *([] if newer is None else [newer]),
        ]

    def faults(self) -> list[str]:
        """Return sentences that say what is wrong with what it tells, whether it answers now or
        not."""
        found = self.findings
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


def _iso(then: float, now: float) -> str:
    """Return the time of day of a moment; both are by `time.monotonic`."""
    at = datetime.fromtimestamp(time.time() - (now - then), UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def cache_tokens(engines: Sequence[Engine]) -> dict[str, float]:
    """Return the tokens that the caches of these engines hold, by endpoint. One that has not told
    counts as the others; empty if nobody has."""
    told = [tokens for engine in engines if (tokens := engine.cache_tokens) is not None]
    if not told:
        return {}
    mean = sum(told) / len(told)
    return {
        endpoint.name: mean if engine.cache_tokens is None else engine.cache_tokens
        for engine in engines
        for endpoint in engine.endpoints
    }
