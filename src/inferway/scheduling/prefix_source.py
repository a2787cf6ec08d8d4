"""The sources of the figures of how much of a prompt each endpoint holds: the index, which knows
from the engines' own events (precise), or what went where (approximate)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from inferway.errors import ConfigError
from inferway.model import BLIND, STALE, Candidates, Column, ColumnKey
from inferway.scheduling.registry import Building

APPROXIMATE = "approx-prefix-cache-producer"
# In llm-d; here the index, which is always there, and counts a prompt on its way as held.
PRECISE = "precise-prefix-cache-producer"
BURST = "burst-prefix-cache-producer"

# What a match counts for, by how true what we believe of the endpoint is.
# Of a partial engine all we believe is true, it may only hold more; one that is being
# repaired is a moment behind. Behind a lost link nothing confirms what we believe: mostly it is a
# hiccup and all is still there, sometimes the engine was restarted and nothing is. Half lets an
# engine that confirms as much win, and the stale one win over those that hold little.
TRUST = np.ones(5)
TRUST[STALE] = 0.5
TRUST[BLIND] = 0.0
TRUST.setflags(write=False)


class PrefixMatchInfo(msgspec.Struct, frozen=True):
    """One value a row, of all of a request's prompts (llm-d: PrefixCacheMatchInfo)."""

    value: Column  # blocks held, less those in lower tiers and those that nothing confirms
    held: Column  # the same blocks, each counted as one
    total: Column  # blocks of the prompts; 0 where they are not known
    block_tokens: Column  # tokens a block


class PrefixSource(Protocol):
    """The figures for a request."""

    def match(self, candidates: Candidates) -> PrefixMatchInfo | None:
        """Return the figures; None if they were not looked up."""

    def value(self, candidates: Candidates) -> Column:
        """Return `match(...).value`, or zeros. Not to be written to."""

    def total(self, candidates: Candidates) -> Column:
        """Return `match(...).total`, or zeros. Not to be written to."""


@dataclass(frozen=True, slots=True)
class PrecisePrefixSource:
    """Takes matched blocks from the index."""

    def match(self, candidates: Candidates) -> PrefixMatchInfo:
        return PrefixMatchInfo(
            self.value(candidates),
            candidates.matched_blocks,
            candidates.prompt_blocks,
            candidates.block_sizes.astype(np.float64),
        )

    def value(self, candidates: Candidates) -> Column:
        return candidates.weighted_matched_blocks * TRUST[candidates.states]

    def total(self, candidates: Candidates) -> Column:
        return candidates.prompt_blocks


class ApproximatePrefixSource:
    """The columns of the approx-prefix-cache-producer of that name."""

    __slots__ = ("block_tokens", "held", "prompt_blocks")

    def __init__(self, producer: str) -> None:
        self.held: ColumnKey[Column] = ColumnKey(f"{producer}/held")
        self.prompt_blocks: ColumnKey[Column] = ColumnKey(f"{producer}/prompt-blocks")
        self.block_tokens: ColumnKey[Column] = ColumnKey(f"{producer}/block-tokens")

    def match(self, candidates: Candidates) -> PrefixMatchInfo | None:
        held, total = candidates.get(self.held), candidates.get(self.prompt_blocks)
        tokens = candidates.get(self.block_tokens)
        if held is None or total is None or tokens is None:
            return None
        return PrefixMatchInfo(held, held, total, tokens)

    def value(self, candidates: Candidates) -> Column:
        return self._or_zeros(candidates, self.held)

    def total(self, candidates: Candidates) -> Column:
        return self._or_zeros(candidates, self.prompt_blocks)

    def _or_zeros(self, candidates: Candidates, column: ColumnKey[Column]) -> Column:
        found = candidates.get(column)
        return np.zeros(len(candidates.endpoints)) if found is None else found


def prefix_source(producer: str, default: str, building: Building) -> PrefixSource:
    """Return the source that `producer` names, which is what `prefixMatchInfoProducerName` says;
    "": the producer of type `default`. Raises ConfigError."""
    name = producer or building.sole_plugin_of(default)
    kind = building.type_of(name)
    if kind in (PRECISE, BURST):
        return PrecisePrefixSource()
    if kind == APPROXIMATE:
        return ApproximatePrefixSource(name)
    raise ConfigError(
        f"prefixMatchInfoProducerName: {producer!r} is no plugin that produces prefix matches; "
        f"expected one of type {APPROXIMATE}, {PRECISE} or {BURST}"
    )
