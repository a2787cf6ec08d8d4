"""Values that cross folder borders. Frozen; the one table that changes says who writes it.

What is made for each request is a msgspec.Struct: a frozen dataclass takes six times as long.

Words (docs/glossary.md): an *engine* is one vLLM server; an *endpoint* is what scheduling
chooses, an engine or one data-parallel rank of it; a *holder* is an endpoint as the index
knows it, a small integer; a *block* is `block_size` tokens; a *block key* is ours, a *block
hash* is the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

# uint32, one per token, in order. A buffer from encoder to block keys, never a list.
TokenIds = NDArray[np.uint32]

# 64-bit chained hash of a block, of all blocks before it and of what `extra_keys` adds.
BlockKey = int

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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What scheduling chooses: an engine, or one data-parallel rank of it."""

    engine: str  # the engine's name: host:port unless configured
    url: str  # http://host:port, no trailing slash
    holder: HolderId
    rank: int | None = None  # None: the engine has one rank, or balances its own
    headers: Headers = field(default=(), repr=False)  # sent with every request: its API key


class Prompt(msgspec.Struct, frozen=True):
    """One prompt as the engine will see it, and the keys of its full blocks."""

    token_ids: TokenIds
    block_keys: Sequence[BlockKey]


Column = NDArray[np.float64]


@dataclass(slots=True)
class Candidates:
    """The endpoints that may serve a request: a table of columns, row i = `endpoints[i]`.

    `fleet` owns the load columns and updates them in place; the matched columns are new for
    each request. Scorers read, and return a column of their own.
    """

    endpoints: Sequence[Endpoint]
    rows: Mapping[HolderId, int]  # holder -> row
    block_sizes: NDArray[np.int64]  # in tokens; 0 where it is not known
    in_flight: Column  # requests we have sent there and not seen the end of
    others: Column  # requests there that are not ours, as of the last scrape
    waiting: Column  # requests queued in the engine, as last scraped
    kv_usage: Column  # share of the engine's KV blocks in use, 0..1, as last scraped
    recent_tokens: Column  # prompt tokens sent there to be computed; fades within a minute
    matched_blocks: Column  # blocks of the request's prompts that the endpoint holds
    prompt_blocks: Column  # full blocks of the request's prompts, in the endpoint's block size


class Target(msgspec.Struct, frozen=True):
    """One endpoint of a decision, with what was known of it."""

    endpoint: Endpoint
    score: float
    matched_blocks: int
    prompt_blocks: int


class Decision(msgspec.Struct, frozen=True):
    """Where a request goes: best first, and why."""

    targets: tuple[Target, ...]
    reason: str  # "kv-aware", or why it went by load only: a short label for a metric
