"""The prompts that were routed lately, as token ids: how a drained engine is asked for its blocks.

The index tells which blocks an engine holds by their keys, and no engine can be asked for a key. So
the ids of recent prompts are kept, of engines that can hand blocks to others alone. They are the
arrays that the requests were matched by, not copies. The next turn of a conversation takes the
place of the one before. What is kept is private: it is never logged and never shown.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from inferway.kv.index.prefix_lengths import different_lengths
from inferway.model import BlockKey, TokenIds
from inferway.routing.journey import Routed
from inferway.routing.match import Matched

MAX_BYTES = 64 * 1024 * 1024  # 2,000 conversations of 8,000 tokens
HALF_LIFE_SECONDS = 300.0  # in which a use loses half of its weight

_OWN_BYTES = 500  # of one prefix, beside its token ids
_MOST_STEPS = 128  # blocks that are looked at for the end of the turn before: an answer's


@dataclass(slots=True, eq=False, repr=False)
class WarmPrefix:
    """A prompt that was routed lately."""

    model: str  # as the engines call it
    token_ids: TokenIds
    cache_salt: str | None
    uses: float  # how often it was, as of `used_at`; older uses count less
    used_at: float

    def warmth(self, now: float) -> float:
        """Return how much it was used lately: each use counts 1, and half of it after each
        HALF_LIFE_SECONDS."""
        return float(self.uses * 0.5 ** ((now - self.used_at) / HALF_LIFE_SECONDS))

    @property
    def num_bytes(self) -> int:
        return int(self.token_ids.nbytes) + _OWN_BYTES


@dataclass(slots=True, repr=False)
class WarmPrefixes:
    """The prefixes that requests have used of late; `on_request` is told of each request that was
    decided. What was not used for longest is dropped over `max_bytes`."""

    max_bytes: int = MAX_BYTES
    num_bytes: int = 0
    # model -> key of the last full block, which names all before it; the last used is last
    _kept: dict[str, OrderedDict[BlockKey, WarmPrefix]] = field(default_factory=dict)

    def on_request(self, routed: Routed, _: float) -> None:
        if routed.decision.targets[0].endpoint.kv_transfer is None or not routed.prompts:
            return
        salt, now = routed.request.body.cache_salt, routed.candidates.now
        for item in next(iter(routed.prompts.values())):
            if item.prompt.block_keys and not item.prompt.media:
                self._keep(routed.model.name, item, salt, now)

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def prefixes(self) -> list[WarmPrefix]:
        return [prefix for kept in self._kept.values() for prefix in kept.values()]

    def _keep(self, model: str, item: Matched, salt: str | None, now: float) -> None:
        kept = self._kept.setdefault(model, OrderedDict())
        before = self._taken(kept, item)
        uses = 1.0 if before is None else 1.0 + before.warmth(now)
        prefix = WarmPrefix(model, _alone(item.prompt.token_ids), salt, uses, now)
        kept[item.prompt.block_keys[-1]] = prefix
        self.num_bytes += prefix.num_bytes
        while self.num_bytes > self.max_bytes:
            self._drop_oldest()

    def _taken(self, kept: OrderedDict[BlockKey, WarmPrefix], item: Matched) -> WarmPrefix | None:
        """Take out the longest prompt that this one begins with, or is. An engine has computed it:
        so it ends where some holder's part of this one does, but for the answer to it."""
        keys = item.prompt.block_keys
        found: BlockKey | None = keys[-1]
        if found not in kept:
            unheld = len(keys) - max(different_lengths(item.found.blocks), default=0)
            lately = islice(reversed(keys), unheld, unheld + _MOST_STEPS)
            found = next(filter(kept.__contains__, lately), None)
        if found is None:
            return None
        prefix = kept.pop(found)
        self.num_bytes -= prefix.num_bytes
        return prefix

    def _drop_oldest(self) -> None:
        firsts = [next(iter(kept.values())) for kept in self._kept.values() if kept]
        oldest = min(firsts, key=lambda prefix: prefix.used_at)
        kept = self._kept[oldest.model]
        kept.popitem(last=False)
        if not kept:
            del self._kept[oldest.model]
        self.num_bytes -= oldest.num_bytes


def _alone(ids: TokenIds) -> TokenIds:
    """The same ids; as a copy if they are a part of an array, which they would keep alive."""
    return ids.copy() if isinstance(ids.base, np.ndarray) else ids
