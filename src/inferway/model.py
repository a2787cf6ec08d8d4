"""Values that cross folder borders. Frozen; the one table that changes says who writes it.

What is made for each request is a msgspec.Struct: a frozen dataclass takes six times as long.

Words (docs/glossary.md): an *engine* is one vLLM server; an *endpoint* is what scheduling
chooses, an engine or one data-parallel rank of it; a *holder* is an endpoint as the index
knows it, a small integer; a *block* is `block_size` tokens; a *block key* is ours, a *block
hash* is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:  # the helper process needs this module, and has no use for numpy
    import numpy as np
    from numpy.typing import NDArray

# uint32, one per token, in order. A buffer from encoder to block keys, never a list.
TokenIds: TypeAlias = "NDArray[np.uint32]"
# (tokens, 2): [start, end) of each token in characters of the text.
Offsets: TypeAlias = "NDArray[np.uint32]"

# 64-bit chained hash of a block, of all blocks before it and of what `extra_keys` adds.
BlockKey = int

# How prompts are cut into blocks for an engine: the tokens of a block and, from bit 32 on, the
# tokens behind a block that its hash covers as well. Nearly always it is the block size.
Cut = int
_LOOKAHEAD_BIT = 32


def cut_of(block_size: int, lookahead: int = 0) -> Cut:
    """Return the cut of blocks of so many tokens with so many look-ahead tokens."""
    return block_size | lookahead << _LOOKAHEAD_BIT


def block_size_of(cut: Cut) -> int:
    """Return the tokens of a block."""
    return cut & (1 << _LOOKAHEAD_BIT) - 1


def lookahead_of(cut: Cut) -> int:
    """Return the look-ahead tokens of a block."""
    return cut >> _LOOKAHEAD_BIT


# Small recycled integer: position of the endpoint's bit in the index's masks.
HolderId = int


# (name, value), names in lower case; a sequence, because names may repeat and order is kept.
Headers = Sequence[tuple[bytes, bytes]]


class RequestHead(msgspec.Struct, frozen=True):
    """A client's request without its body."""

    method: str
    path: str  # without the query
    query: str
    headers: Headers


ROLE = "llm-d.ai/role"  # an endpoint's label, in disaggregated serving
# its values that stand for prefilling, and for decoding (llm-d-router ebab687, filter/bylabel)
PREFILL_ROLES = frozenset(
    {"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}
)
DECODE_ROLES = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})


class KvConnector(StrEnum):
    """The ways in which an engine gets KV blocks that another one has computed: vLLM's connectors,
    and SGLang's bootstrap."""

    NIXL = "nixl"  # the decode engine pulls what the prefill engine has kept for it
    NIXL_PUSH = "nixl-push"  # the prefill engine writes where the decode engine has asked it to
    MOONCAKE = "mooncake"  # both are asked at once, paired by an id of ours
    SGLANG = "sglang"  # both are asked at once, paired by a room


class KvTransfer(msgspec.Struct, frozen=True):
    """The ways in which an endpoint hands KV blocks to others, and takes theirs."""

    connector: KvConnector
    # Endpoints with the same connector and group can hand blocks to each other. It is made of what
    # must be equal: model, dtype, block size, the engine's version.
    group: str = ""
    gives: bool = True  # it may compute prompts for others
    takes: bool = True  # it may decode what others have computed
    lease_seconds: float = 30.0  # so long it keeps blocks that were not fetched
    bootstrap: str = ""  # host:port where both sides meet: of Mooncake and SGLang
    hosts: tuple[str, ...] = ()  # where its side channel may be; empty: at the host of its URL

    @property
    def role(self) -> str:
        """The legs of a request that it may have: prefill, decode, both or none."""
        if self.gives:
            return "both" if self.takes else "prefill"
        return "decode" if self.takes else "none"

    def hands_to(self, other: KvTransfer | None) -> bool:
        """Return whether `other` may decode what this one has computed."""
        if other is None or not (self.gives and other.takes):
            return False
        return (self.connector, self.group) == (other.connector, other.group)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A target of scheduling: an engine, or one data-parallel rank of it."""

    engine: str  # the engine's name: host:port unless configured
    url: str  # http://host:port, no trailing slash
    holder: HolderId
    rank: int | None = None  # None: the engine has one rank, or balances its own
    headers: Headers = field(default=(), repr=False)  # sent with every request: its API key
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)  # Kubernetes' words
    # None: it is not known to hand blocks to others
    kv_transfer: KvTransfer | None = field(default=None, compare=False)

    @property
    def address(self) -> str:
        """The endpoint's `host:port`."""
        scheme, _, address = self.url.partition("://")
        has_port = address.rpartition(":")[2].isdigit()
        return address if has_port else f"{address}:{443 if scheme == 'https' else 80}"

    @property
    def host_port(self) -> bytes:
        """The part of the URL that llm-d's headers name."""
        return self.url.partition("://")[2].encode()

    @property
    def name(self) -> str:
        """Unique in the fleet, and the same after a restart."""
        return self.engine if self.rank is None else f"{self.engine}/{self.rank}"


class Reason(StrEnum):
    """The reason why a request went where it went: the labels of `inferway_decisions_total`, and
    the `reason` of a RenderError."""

    KV_AWARE = "kv-aware"  # its prompts are known to the last token
    # known as far as they go: scheduling matches what is known
    MEDIA_PREFIX = "media-prefix"  # up to the first part that is not text
    REMOTE = "remote"  # an engine has rendered it, all of it
    REMOTE_PREFIX = "remote-prefix"  # an engine had rendered its earlier turns
    # by load only
    LOAD_ONLY = "load-only"  # scoring is switched off
    NO_BLOCK_SIZE = "no-block-size"  # no engine of the model has told its block size
    UNFAITHFUL = "unfaithful"  # the probe has seen an engine derive other tokens than we do
    TOKENIZER_LOADING = "tokenizer-loading"
    NO_TOKENIZER = "no-tokenizer"
    BAD_TOKENIZER = "bad-tokenizer"
    NO_TEMPLATE = "no-template"
    BAD_TEMPLATE = "bad-template"
    OWN_RENDERER = "own-renderer"  # vLLM renders this model's chats in code of its own
    REMOTE_LATE = "remote-late"  # no engine has rendered it in time
    REMOTE_FAILED = "remote-failed"  # no engine renders, or it answered something else
    MANY_PROMPTS = "many-prompts"  # one request with more prompts than are looked at
    RESPONSE_ITEMS = "response-items"  # of a response, what only the engine makes a prompt of
    MESSAGE_BLOCKS = "message-blocks"  # of a message, what engines refuse, or hold otherwise
    EMBEDDINGS = "embeddings"  # engines keep none of its blocks, or only they make its prompts
    UNREAD = "unread"  # its path carries no prompt that we could derive
    REQUEST_TEMPLATE = "request-template"  # the request brings a template that is not trusted
    HELPER_BUSY = "helper-busy"  # the helper process has too much to do, or gave this one up
    MEDIA = "media"  # nothing is known before its first part that is not text
    UNKNOWN_CONTEXT_LENGTH = "unknown-context-length"
    OUR_FAULT = "our-fault"  # an error of ours while deriving the prompt; it is in the log

    @property
    def is_whole(self) -> bool:
        """True if the known prompts are everything that the engine will see."""
        return self not in (Reason.MEDIA_PREFIX, Reason.REMOTE_PREFIX)

    @property
    def is_by_load(self) -> bool:
        """True if nothing of the prompt was known, so that load alone decided."""
        return self not in (
            *(Reason.KV_AWARE, Reason.MEDIA_PREFIX),
            *(Reason.REMOTE, Reason.REMOTE_PREFIX),
        )

    @property
    def is_of_request(self) -> bool:
        """True if the reason follows from what the client sent, and tells nothing of the fleet."""
        return self in (
            *(Reason.MANY_PROMPTS, Reason.RESPONSE_ITEMS, Reason.MESSAGE_BLOCKS),
            *(Reason.EMBEDDINGS, Reason.UNREAD),
            *(Reason.REQUEST_TEMPLATE, Reason.MEDIA),
        )


class MediaSpan(NamedTuple):
    """The tokens of a prompt that stand for one picture, sound or video; `identifier` is the
    engine's name for it, which is a part of its blocks' keys."""

    identifier: str
    offset: int
    length: int


class MediaName(NamedTuple):
    """The `uuid` that a part of a chat's message gets; both are counted from 0."""

    message: int
    part: int
    uuid: str
    num_bytes: int = 0  # of the part's content, in base64


class Tokenized(msgspec.Struct, frozen=True):
    """A request's prompts as token ids: whole and exact, unless `reason` says how far."""

    token_ids: list[TokenIds]  # one per prompt, in order
    reason: Reason = Reason.KV_AWARE
    media: Sequence[MediaSpan] = ()  # of the only prompt, in order
    names: Sequence[MediaName] = ()  # by which `media` are known: the engine must get them, too

    def before_media(self) -> Tokenized:
        """Return what is known of the prompt if the engine does not get the names of its media."""
        if not self.media:
            return self
        return Tokenized([self.token_ids[0][: self.media[0].offset]], Reason.MEDIA_PREFIX)


class ContextLengths(msgspec.Struct, frozen=True):
    """The context lengths of the engines that serve a model, in tokens of prompt and answer
    together."""

    least: int | None = None  # of those that have told
    most: int | None = None  # None: one has not told, and may take whatever comes
    by_engine: Mapping[str, int] = {}  # of those that have told; empty where all have the same

    def take(self, engine: str, tokens: int) -> bool:
        """Return whether the engine takes a request that needs so many tokens."""
        return tokens <= self.by_engine.get(engine, tokens)


NO_LENGTHS = ContextLengths()


class Places(Protocol):
    """A prompt's blocks by the token that they end at, for engines whose groups of KV caches have
    blocks of different sizes."""

    @property
    def block_size(self) -> int:
        """The tokens of the blocks that the prompt is cut into."""

    @property
    def num_tokens(self) -> int:
        """The tokens of the prompt, also those behind its last whole block."""

    @property
    def num_hashed(self) -> int:
        """The tokens that may be in a block: fewer where a hash covers tokens behind its block."""

    def key(self, end: int, unit: int) -> BlockKey | None:
        """Return the key of the block that ends at token `end`, a multiple of `unit`; None if
        blocks cannot end there."""


class Prompt(msgspec.Struct, frozen=True):
    """One prompt as the engine will see it, and the keys of its full blocks."""

    token_ids: TokenIds
    block_keys: Sequence[BlockKey]
    places: Places | None = None  # for engines with blocks of several sizes; None: there are none
    media: Sequence[MediaSpan] = ()  # a prompt with media is more than its ids


Column: TypeAlias = "NDArray[np.float64]"
# Rows of columns. A slice, where it is one, gives views and costs a tenth.
Rows: TypeAlias = "slice | NDArray[np.intp]"

# What is believed of an engine's cache (kv.events.stream.StreamState), as numbers of a column.
EXACT, PARTIAL, REPAIRING, STALE, BLIND = range(5)


class Adapters(msgspec.Struct, frozen=True):
    """LoRA adapters of an engine, as last scraped (vllm:lora_requests_info)."""

    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    most: int = 0  # so many may run at a time; 0: the engine has not told


_ArrayT = TypeVar("_ArrayT", bound="NDArray[Any]")


class ColumnKey(msgspec.Struct, Generic[_ArrayT], frozen=True):
    """Names a column that a producer adds, with its type: plugins that want it import this."""

    name: str


class Figure(msgspec.Struct, frozen=True):
    """The source of a column of `Candidates`, and its type. One with `metrics` is scraped, from the
    first of them that the engine has; its ranks add up, but a share's (`is_share`) are averaged."""

    unknown: float = 0.0  # the value for an endpoint of which nothing is known
    kind: str = "f8"  # numpy's word for its type
    metrics: tuple[str, ...] = ()
    is_share: bool = False
    about: str = ""  # what is scraped, for /metrics
    fades: bool = False  # toward the mean of the others, while nothing is scraped
    is_matched: bool = False  # new for each request that has prompts


def _kept(unknown: float = 0.0, kind: str = "f8", *, fades: bool = False) -> Mapping[str, Figure]:
    """A column that the fleet keeps by what it sees itself."""
    return {"figure": Figure(unknown, kind, fades=fades)}


def _scraped(about: str, *metrics: str, is_share: bool = False) -> Mapping[str, Figure]:
    """A column that the fleet fills with what engines tell."""
    return {"figure": Figure(metrics=metrics, is_share=is_share, about=about, fades=True)}


_MATCHED = {"figure": Figure(is_matched=True)}


@dataclass(slots=True)
class Candidates:
    """The endpoints that may serve a request: a table of columns, row i = `endpoints[i]`.

    `fleet` owns all columns but the matched ones and updates them in place; the matched columns are
    new for each request. Scorers read, and return a column of their own. A new figure of engines is
    one more column here: what it is read from stands beside it.
    """

    endpoints: Sequence[Endpoint]
    rows: Mapping[HolderId, int]  # holder -> row
    adapters: Sequence[Adapters]
    # in tokens; 0 where it is not known
    block_sizes: NDArray[np.int64] = field(metadata=_kept(kind="i8"))
    # how its prompts are cut: their block size, and more; 0 where it is not known
    cuts: NDArray[np.int64] = field(metadata=_kept(kind="i8"))
    # EXACT to BLIND: how true is what we believe that it holds
    states: NDArray[np.int8] = field(metadata=_kept(BLIND, kind="i1"))
    in_flight: Column = field(metadata=_kept())  # requests sent there that have not ended
    # requests there that are not ours, as of the last scrape
    others: Column = field(metadata=_kept(fades=True))
    running: Column = field(
        metadata=_scraped(
            "Requests that run in the engine",
            "vllm:num_requests_running",
            "sglang:num_running_reqs",
            "trtllm_num_requests_running",
        )
    )
    waiting: Column = field(
        metadata=_scraped(
            "Requests that wait in the engine",
            "vllm:num_requests_waiting",
            "sglang:num_queue_reqs",
            "trtllm_num_requests_waiting",
        )
    )
    kv_usage: Column = field(
        metadata=_scraped(
            "Share of the engine's KV blocks in use, from 0 to 1",
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",  # vLLM's older name
            "sglang:token_usage",
            "trtllm_kv_cache_utilization",
            is_share=True,
        )
    )
    # requests there without a first token, as last scraped; -1: not told
    awaiting_first_token: Column = field(metadata=_kept(-1.0))
    # blocks that its GPU cache takes without pushing others out, at the last scrape; -1: not known
    free_blocks: Column = field(metadata=_kept(-1.0))
    # prompt tokens sent there to be computed; fades within a minute
    recent_prefill_tokens: Column = field(metadata=_kept())
    matched_blocks: Column = field(metadata=_MATCHED)  # blocks of its prompts that it holds
    # the same, weighed by the tiers they lie in
    weighted_matched_blocks: Column = field(metadata=_MATCHED)
    prompt_blocks: Column = field(metadata=_MATCHED)  # full blocks, in the endpoint's block size
    added: dict[str, NDArray[Any]] = field(default_factory=dict)  # by producers
    now: float = 0.0  # seconds, when the choice is made; by the clock that followers are told

    def add(self, column: ColumnKey[_ArrayT], values: _ArrayT) -> None:
        """Add a producer's column: one value a row."""
        self.added[column.name] = values

    def get(self, column: ColumnKey[_ArrayT]) -> _ArrayT | None:
        """Return a producer's column; None if no producer has added it."""
        return self.added.get(column.name)  # type: ignore[return-value]

    def narrowed(
        self,
        rows: Rows,
        endpoints: Sequence[Endpoint],
        holders: Mapping[HolderId, int],
        adapters: Sequence[Adapters],
    ) -> Candidates:
        """Return a table of these rows alone; what of them is no column is given. With a slice its
        columns are views."""
        columns = [column[rows] for column in _columns(self)]
        narrowed = Candidates(endpoints, holders, adapters, *columns)
        if self.added:
            narrowed.added = {name: values[rows] for name, values in self.added.items()}
        narrowed.now = self.now
        return narrowed


# The columns by name, in their order; and those of them that are scraped.
FIGURES: Mapping[str, Figure] = {
    each.name: each.metadata["figure"] for each in fields(Candidates) if each.metadata
}
_columns: Callable[[Candidates], Sequence[Any]] = attrgetter(*FIGURES)  # in a third of the time
SCRAPED = {name: figure for name, figure in FIGURES.items() if figure.metrics}


class Target(msgspec.Struct, frozen=True):
    """One endpoint of a decision, with what was known of it."""

    endpoint: Endpoint
    score: float
    matched_blocks: int
    prompt_blocks: int


class SchedulingResult(msgspec.Struct, frozen=True):
    """The result of scheduling: endpoints, best first, and the headers that the chosen engine needs
    (with disaggregated prefill: where the prompt is computed). `others` are endpoints that have a
    part in the request too, by the name of the profile that chose them. `prefill`, if it is not
    empty: where the prompt is to be computed for the first of `targets`, best first."""

    targets: tuple[Target, ...]
    headers: Headers = ()
    others: Mapping[str, Target] = {}
    profile: str = ""  # that chose the targets, where there are several
    prefill: tuple[Target, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """The endpoints of a request, best first, and the reason."""

    targets: tuple[Target, ...]
    reason: Reason
    headers: Headers = ()  # see SchedulingResult
    prefill: tuple[Target, ...] = ()  # see SchedulingResult
    profile: str = ""  # see SchedulingResult


class Alarm(msgspec.Struct, frozen=True):
    """Something that should not be so, in words, and what to do about it. It reads: subject,
    evidence, since when; then detail and effect, and the cure."""

    level: str  # "fail", "warn", or "info" of what may be on purpose
    subject: str
    evidence: str
    cure: str = ""  # empty: the evidence holds it
    since: float | None = None  # Unix time; None: it is not known, or does not matter
    detail: str = ""
    effect: str = ""
    see: str = ""  # the address of a page that says more
    is_total: bool = False  # no request is answered

    def said(self, since_words: Callable[[float], str]) -> str:
        """Return all but subject and cure, as a sentence. `since_words`: of a Unix time."""
        words = self.evidence
        if self.since is not None:
            words += f" {since_words(self.since)}"
        if self.detail:
            words += f": {self.detail}"
        return f"{words}. {self.effect[:1].upper()}{self.effect[1:]}" if self.effect else words
