"""The record of one request once it has ended: where it could have gone, where it went, what came
of that, and why the three differ. Names, numbers and reasons; no text and no token ids.

reachable   the longest prefix of the prompt that any endpoint held
chosen      what the endpoint held that was chosen, as far as we believed
delivered   what its engine says that it has taken from its cache
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

# Suffix of the picker's name, where the endpoint was picked to get to know it.
A_TRY = ", as a try of an engine that is hardly known"
MOST_CANDIDATES = 8  # of a record: the chosen one, the longest holder, then the cheapest


class MissKind(StrEnum):
    """The reason why less of a prompt was reused than could have been."""

    # reachable and not chosen
    MOVED_FOR_LOAD = "moved-for-load"  # to wait there would have cost more than to compute it
    FILTERED = "filtered"  # its holder might not be chosen: ejected, drained, full, ...
    # held by someone, and never reachable for this request
    SALTED = "salted"  # under another cache salt
    OTHER_ADAPTER = "other-adapter"  # under another adapter, or the base model
    LAYOUT = "layout"  # the chosen engine holds it, and another group of its caches does not
    # chosen and not delivered
    EVICTED = "evicted"  # the engine has dropped it meanwhile, and has said so
    STALE = "stale"  # our picture of the engine was not true
    DIFFERS = "template-or-tokens-differ"  # the engine has made other tokens of the request
    NEVER_STORED = "never-stored"  # a prompt on its way counted as held, and was not kept
    RESTART = "restart"  # the engine has begun anew, or was emptied
    TRUNCATED = "truncated"  # the engine has cut the prompt off
    SILENT = "silent"  # the engine has not said what it reused

    @property
    def is_innocent(self) -> bool:
        """True if the miss is explained without the picture of the engine having been wrong."""
        return self is not MissKind.STALE


class Miss(msgspec.Struct, frozen=True):
    """The number of blocks that were not reused for one reason."""

    kind: str  # MissKind
    blocks: int
    detail: str = ""  # in words: which endpoint, which event, when; never of the request's text


class CandidateRecord(msgspec.Struct, frozen=True):
    """The figures of one endpoint that might have been chosen."""

    endpoint: str
    blocks: int  # of the prompt that it held, from the first on without a hole
    tiers: tuple[tuple[int, int], ...] = ()  # runs of them: kv.index.protocol.Tier, blocks
    terms: Mapping[str, float] = {}  # what the expected TTFT is made up of in ms; or its score
    others_ms: float = 0.0  # what the request would cost all others there
    cost: float = 0.0  # ms, in all; of a choice by scores: less is better, too
    running: int = 0  # requests in the engine, as last scraped
    waiting: int = 0


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one request. -1 is a number that is not known."""

    id: str
    at: float  # when it came; Unix time in seconds
    model: str = ""
    path: str = ""
    tenant: str = ""  # a keyed hash in hex of its API key's name, or of its cache salt; or nothing
    session: str = ""  # a keyed hash in hex of x-session-id, or nothing
    streamed: bool = False
    prompt_tokens: int = -1  # as we have counted them
    prompt_blocks: int = 0
    block_size: int = 0
    reason: str = ""  # model.Reason; empty: it was refused before that was decided
    picked_by: str = ""  # the profile, policy or plugin
    edits: tuple[str, ...] = ()  # what of the client's bytes was changed
    waited_ms: float = 0.0  # for its turn
    decided_ms: float = 0.0  # until it was known where it goes, without that wait
    attempts: int = 0
    continued: int = 0  # times that another engine went on in the middle of its answer
    candidates: tuple[CandidateRecord, ...] = ()  # at most MOST_CANDIDATES of them
    num_candidates: int = 0  # that there were
    chosen: str = ""  # the endpoint that was tried last
    prefill: str = ""  # the endpoint that has computed its prompt for it
    reachable_blocks: int = 0
    reachable_at: str = ""  # the endpoint that held them
    chosen_blocks: int = 0
    delivered_tokens: int = -1
    usage_prompt_tokens: int = -1  # as the engine has counted them
    output_tokens: int = -1
    missed: tuple[Miss, ...] = ()
    expected_ttft_ms: float = -1.0
    ttft_ms: float = -1.0
    itl_p50_ms: float = -1.0  # between two pieces of a stream that carry tokens
    itl_max_ms: float = -1.0
    total_ms: float = 0.0
    status: int = 0  # of the answer; 0: its client has gone before there was one
    outcome: str = ""  # scheduling.plugin.RequestOutcome, and "refused"

    @property
    def is_missed(self) -> bool:
        """True if less was reused than could have been, as far as the engine has told."""
        return any(miss.kind != MissKind.SILENT for miss in self.missed)
