"""Facts that an engine tells of itself: models, KV-event sockets, block size.

    GET /version            of vLLM; others have no such path
    GET /v1/models          names, the model's directory or hub id, adapters and their parents
    GET /kv_event_sources   vLLM's publisher per data-parallel rank, with `*` for its own host
    GET /metrics            `vllm:cache_config_info{block_size=…}`, nowhere else to be had
    GET /metrics/?name[]=…  the load alone, where that is cheaper (`narrow_path`)
    GET /server_info        how it hands KV blocks to others (`kv_transfer`)
    GET /sleep              405 of engines in development mode: there is such a path, for POST
    GET /v1/structured/warm 405 of engines with our plugin: there is such a path, for POST

What an engine says about *where* its events are is not trusted beyond its own host: an engine
that names another would make us open connections to wherever it likes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from inferway.config import EngineSettings
from inferway.errors import UpstreamError
from inferway.fleet.engine_client import EngineClient, StatusError
from inferway.fleet.event_source import EventSource
from inferway.fleet.kv_transfer import LOOPBACK, KvTransferFacts, ask_kv_transfer, host_of
from inferway.fleet.load import load_names, samples
from inferway.kv.events.groups import NO_FACTS, CacheFacts
from inferway.model import Headers
from inferway_structured.decoding import UNREADABLE

HEALTH = "/health"
MODELS = "/v1/models"
METRICS = "/metrics"
MAX_MODELS = 4096  # most of them adapters
MAX_BASE_MODELS = 128  # each may be a tokenizer of its own
MAX_RANKS = 512  # each takes sockets
MAX_SOURCES_BYTES = 1024 * 1024  # some 200 a rank
MAX_CARD_FINDINGS = 3  # each is a warning in the log

# The newest vLLM whose prompts, verdicts and events this release has been compared with
# (docs/compatibility.md).
NEWEST_VLLM = (0, 33)

_LABEL = re.compile(r'[{,]([a-z_]{1,60})="([^"]{0,200})"')
_NUMBER = re.compile(r"\d{1,9}")
_MAJOR_MINOR = re.compile(r"(\d{1,6})\.(\d{1,6})")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One line of an engine's /v1/models."""

    name: str
    root: str | None  # directory or hub id; of an adapter: the adapter's own
    parent: str | None  # of an adapter: the base model's name
    max_model_len: int | None
    owned_by: str | None = None


@dataclass(frozen=True)
class EngineFacts:
    """Everything that an engine has told. `findings` are sentences for the log, each with its cure.
    What follows from the models is computed once, because there may be thousands of adapters, and
    each asks."""

    models: tuple[ModelCard, ...]
    sources: tuple[EventSource, ...]
    block_size: int | None
    findings: tuple[str, ...]
    version: str | None = None  # vLLM's, as it says
    has_plugin: bool = False  # our structured output (inferway_structured.vllm)
    load_path: str = METRICS  # where its load is asked for, again and again
    kv_transfer: KvTransferFacts | None = None  # None: it tells of no connector
    cache_blocks: int | None = None  # that have room on each of its GPUs
    cache: CacheFacts = NO_FACTS  # what its events do not say
    tells_state: bool = False  # whether it sleeps or is paused, if it is asked
    caches_prefixes: bool = False  # it says so

    @cached_property
    def base_models(self) -> Sequence[ModelCard]:
        """The engine's models without adapters: the names of what it is."""
        return [card for card in self.models if not card.parent]

    @cached_property
    def vllm_version(self) -> tuple[int, int] | None:
        """The first two numbers of its version, if it says that it is a vLLM of one."""
        found = _MAJOR_MINOR.match(self.version or "")
        is_vllm = any(card.owned_by == "vllm" for card in self.base_models)
        return (int(found[1]), int(found[2])) if is_vllm and found is not None else None

    @property
    def newer_than_known(self) -> str | None:
        """A sentence that names its version, if that is newer than NEWEST_VLLM; else None."""
        if self.vllm_version is None or self.vllm_version <= NEWEST_VLLM:
            return None
        newest = ".".join(map(str, NEWEST_VLLM))
        return (
            f"vLLM {self.version} is newer than {newest}, the newest that this gateway has been"
            " compared with: the probe compares prompts, and shapes or events may differ"
        )

    @cached_property
    def adapter_paths(self) -> Mapping[str, str | None]:
        """The adapters' paths by name; None for one whose path was not told."""
        return {card.name: card.root for card in reversed(self.models) if card.parent}


def given_source(settings: EngineSettings) -> EventSource | None:
    """Return the source that an engine's settings give by hand; a wildcard means that we bind.
    None: the engine is asked."""
    if settings.events is None:
        return None
    return EventSource(0, settings.events, settings.replay, bind="*" in settings.events)


class NoEngineError(UpstreamError):
    """Something answered, and not as an engine does."""


async def discover(
    client: EngineClient,
    url: str,
    headers: Headers,
    before: EngineFacts | None = None,
    heard: Callable[[], None] = lambda: None,
) -> tuple[EngineFacts, str]:
    """Ask the engine what it is; its metrics are given along, for who reads its load in them.
    Raises UpstreamError when it does not answer, or not as an engine, or says itself that it is not
    well: an engine whose core has died still lists its models. A path that it does not have is a
    finding, a question without an answer never is. `before`: what it has told earlier. `heard` is
    called when it has answered, again and again, for each answer may take its time."""

    async def ask(path: str) -> bytes | int:
        """Return the answer, or the status of one that is not 200."""
        answer: bytes | int
        try:
            answer = await client.get(url, path, headers)
        except StatusError as e:
            answer = e.answered
        heard()
        return answer

    models, findings = await ask_models(client, url, headers, heard)
    raw_sources = await ask("/kv_event_sources")
    if isinstance(raw_sources, int):
        findings += (
            f"{url}/kv_event_sources answered {raw_sources}; its KV events cannot be discovered"
            " (vLLM >= 0.16 has this path)",
        )
        raw_sources = b"{}"
    sources, source_findings = resolve_sources(host_of(url), raw_sources)
    metrics = await client.metrics(url, METRICS, headers)
    heard()
    if not metrics:
        findings += (f"{url}{METRICS} has nothing to say; give block_size=N by hand",)
    version = _version(await ask("/version"))
    # Asked without a question: /v1/structured/stats would wait for the engine's core, which may be
    # in a long step.
    has_plugin = await ask("/v1/structured/warm") == 405
    tells_state = await ask("/sleep") == 405  # nor is /is_sleeping asked here, for the same reason
    narrow = narrow_path(metrics)
    load_path = narrow if narrow and tells_as_much(await ask(narrow), metrics) else METRICS
    cache = parse_cache_labels(metrics)
    facts = EngineFacts(
        *(models, sources, number_in(cache, "block_size"), (*findings, *source_findings)),
        *(version, has_plugin, load_path),
        cache_blocks=number_in(cache, "num_gpu_blocks"),
        cache=CacheFacts(
            drops_last_block=before is not None and before.cache.drops_last_block,
            hash_size=number_in(cache, "hash_block_size") or 0,
        ),
        tells_state=tells_state,
        caches_prefixes=cache.get("enable_prefix_caching") == "True",
    )
    told = before.kv_transfer if before is not None else None
    transfer = await ask_kv_transfer(client, url, headers, metrics, facts.vllm_version, told)
    return replace(facts, kv_transfer=transfer), metrics


async def ask_models(
    client: EngineClient, url: str, headers: Headers, heard: Callable[[], None]
) -> tuple[tuple[ModelCard, ...], tuple[str, ...]]:
    """Ask the engine whether it is well, and what it serves, as `parse_models` returns it. Raises
    UpstreamError, also if it is not well."""
    try:
        await client.get(url, HEALTH, headers)
    except StatusError as e:
        if e.answered != 404:  # not everything that speaks OpenAI's API has it
            raise
    heard()
    models = parse_models(await client.get(url, MODELS, headers))
    heard()
    return models


def narrow_path(metrics: str) -> str | None:
    """Return where the engine may tell its load and no more; None if it tells none. vLLM and SGLang
    have prometheus_client's own app, which knows `name[]`, behind `/metrics/`; vLLM's `/metrics` is
    another, which always gives all: 61 KB, for which its API server takes 13 ms of CPU instead of
    1.1 (0.32, a core of Zen 3, 2026-11-22)."""
    names = load_names(metrics)
    return f"{METRICS}/?" + "&".join(f"name%5B%5D={name}" for name in names) if names else None


def tells_as_much(narrow: bytes | int, metrics: str) -> bool:
    """Return whether the answer there has all that is read of the whole page, in less than half of
    it: else it was redirected, or the names were ignored. With several API servers, whose metrics
    are in files, `name[]` finds nothing."""
    if isinstance(narrow, int) or 2 * len(narrow) >= len(metrics):
        return False
    return load_names(narrow.decode(errors="replace")) == load_names(metrics)


class _Version(msgspec.Struct):
    version: str


def _version(answer: bytes | int) -> str | None:
    try:
        return (
            None if isinstance(answer, int) else msgspec.json.decode(answer, type=_Version).version
        )
    except UNREADABLE:
        return None


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    owned_by: str | None = None


class _Cards(msgspec.Struct):
    data: list[msgspec.Raw]


def parse_models(raw: bytes) -> tuple[tuple[ModelCard, ...], tuple[str, ...]]:
    """Return the models of /v1/models, and findings for those that cannot be read. Raises
    NoEngineError for anything else, and for more models than an engine has."""
    try:
        raw_cards = msgspec.json.decode(raw, type=_Cards).data
    except UNREADABLE as e:
        raise NoEngineError(f"/v1/models is not a list of models: {e}") from e
    if len(raw_cards) > MAX_MODELS:
        raise NoEngineError(
            f"/v1/models lists {len(raw_cards)} models; expected at most {MAX_MODELS}; give the "
            "URL of one inference engine"
        )
    cards, findings = [], []
    for place, raw_card in enumerate(raw_cards):
        try:
            c = msgspec.json.decode(raw_card, type=_Card)
        except UNREADABLE as e:
            findings.append(f"/v1/models: data[{place}] cannot be read, and is not served: {e}")
        else:
            cards.append(ModelCard(c.id, c.root, c.parent, c.max_model_len, c.owned_by))
    if findings and not cards:
        raise NoEngineError(findings[0])
    num_base = sum([not card.parent for card in cards])
    if num_base > MAX_BASE_MODELS:
        raise NoEngineError(
            f"/v1/models lists {num_base} models that are no adapters (parent: null); expected at "
            f"most {MAX_BASE_MODELS}; give the URL of one inference engine"
        )
    return tuple(cards), tuple(findings[:MAX_CARD_FINDINGS])


class _Source(msgspec.Struct):
    endpoint: str | None = None
    replay_endpoint: str | None = None
    enable_kv_cache_events: bool = True
    publisher: str | None = "zmq"


def resolve_sources(host: str, raw: bytes) -> tuple[tuple[EventSource, ...], tuple[str, ...]]:
    """/kv_event_sources of an engine on `host` -> (sources we may use, findings)."""
    by_hand = "give the sockets by hand: --engine URL,events=tcp://HOST:PORT"
    if len(raw) > MAX_SOURCES_BYTES:
        return (), (
            f"/kv_event_sources has {len(raw)} bytes; expected at most {MAX_SOURCES_BYTES}; "
            f"{by_hand}",
        )
    try:
        by_rank = msgspec.json.decode(raw, type=dict[int, _Source], strict=False)
    except UNREADABLE as e:
        return (), (f"/kv_event_sources cannot be read: {e}",)
    if len(by_rank) > MAX_RANKS:
        return (), (
            f"/kv_event_sources names {len(by_rank)} ranks; expected at most {MAX_RANKS}; "
            f"{by_hand}",
        )
    sources, findings = [], []
    for place, (rank, source) in enumerate(sorted(by_rank.items())):
        if not source.enable_kv_cache_events or source.publisher != "zmq" or not source.endpoint:
            continue
        resolved, finding = _resolve(host, source.endpoint, "events")
        if finding:
            findings.append(finding)
        if resolved is None:
            continue
        replay, finding = None, None
        if source.replay_endpoint:
            replay, finding = _resolve(host, source.replay_endpoint, "replay")
        if finding:
            findings.append(finding)
        sources.append(EventSource(rank, resolved, replay, place=place))
    if not sources and not findings:
        findings.append(
            "it publishes no KV events; start it with --kv-events-config "
            '\'{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",'
            '"replay_endpoint":"tcp://*:5558"}\''
        )
    return tuple(sources), tuple(findings)


_TCP = re.compile(r"^tcp://(?P<host>\*|\[[^\]]*\]|[^:/]+):(?P<port>\d+)$")


def _resolve(host: str, endpoint: str, what: str) -> tuple[str | None, str | None]:
    """An endpoint as the engine wrote it -> one we can connect to, or a finding, or both."""
    if endpoint.startswith("ipc://"):
        if host in LOOPBACK:
            return endpoint, None
        return None, f"its {what} socket {endpoint} is on its own machine; use tcp://*:PORT there"
    match = _TCP.match(endpoint)
    if match is None:
        return None, f"its {what} socket {endpoint!r} cannot be used; use tcp://*:PORT there"
    named, port = match["host"].strip("[]"), match["port"]
    if named in ("*", "::", "0.0.0.0"):
        return f"tcp://{f'[{host}]' if ':' in host else host}:{port}", None
    if named == host or {named, host} <= LOOPBACK:
        return endpoint, (
            f"its {what} socket {endpoint} has no wildcard: vLLM connects to such an endpoint "
            f"instead of binding it. If nothing arrives, let us bind: --engine "
            f"URL,{what}=tcp://*:{port}"
        )
    return None, (
        f"its {what} socket {endpoint} is on another host than the engine ({host}) and is not "
        f"used. If it is right, give it by hand: --engine URL,{what}={endpoint} to connect, or "
        f"--engine URL,{what}=tcp://*:{port} if the engine connects to us"
    )


def parse_cache_labels(metrics: str) -> Mapping[str, str]:
    """Return all labels of `vllm:cache_config_info`; none if the engine has no such metric."""
    configs = samples(metrics, ("vllm:cache_config_info",))
    return dict(_LABEL.findall(configs[0][0])) if configs else {}


def number_in(labels: Mapping[str, str], name: str) -> int | None:
    """Return the number that a label has; None if there is no such label, or another word in it."""
    found = _NUMBER.fullmatch(labels.get(name, ""))
    return int(found[0]) if found else None


FIRST_SECONDS = 10.0  # once it has worked
MOST_SECONDS = 300.0


@dataclass(slots=True)
class FactsAge:
    """The age of what one engine has told of itself. Times in seconds, by any clock.

    What an engine tells comes with its start, but for metrics that it has only once it has worked.
    What it serves, and whether it is well, is asked for more often."""

    asked: float | None = None  # None: it may be another engine by now
    has_worked: bool = False  # since then
    holds: float = FIRST_SECONDS  # for so long, once it has worked

    def are_due(self, now: float) -> bool:
        """Return whether it must be asked for all again: ever more seldom while it works and tells
        the same, and MOST_SECONDS later at last."""
        if self.asked is None:
            return True
        return now - self.asked > (self.holds if self.has_worked else MOST_SECONDS)

    def told(self, asked: float, *, is_same: bool) -> None:
        """Note that the engine has told all; `is_same`: the same as before."""
        if not is_same:
            self.holds = FIRST_SECONDS
        elif self.has_worked:
            self.holds = min(MOST_SECONDS, 4 * self.holds)
        self.asked, self.has_worked = asked, False
