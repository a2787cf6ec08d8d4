"""SGLang's `cache_aware` (sglang-router 0.3.2), at the grain of blocks: a model of it.

A tree of all prompts sent, per engine, guesses what each engine holds; nothing is heard from them.
While the fleet is in balance, a prompt goes where most of it was sent before, if that is more than
`cache_threshold` of it; else, and out of balance, to the engine with the fewest requests. Every
`evict_seconds` what was used least recently leaves an engine's tree until it fits
`max_tree_tokens`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inferway.model import Candidates, Choice
from inferway.openai_api.llm_request import LLMRequest
from inferway_bench.policies.gateway import Feed
from inferway_bench.policies.simple import chosen


@dataclass(slots=True)
class CacheAware:
    """Its thresholds are the router's defaults."""

    clock: Callable[[], float]
    block_tokens: int
    cache_threshold: float = 0.3
    balance_abs_threshold: float = 64
    balance_rel_threshold: float = 1.5
    evict_seconds: float = 120.0
    max_tree_tokens: int = 2**26 // 4  # 2^26 characters
    _tree: Feed = field(default_factory=lambda: Feed(0.0))
    _used: list[OrderedDict[int, None]] = field(default_factory=list)  # by row, oldest first
    _next_eviction: float = 0.0

    def choose(self, request: LLMRequest, candidates: Candidates) -> Choice:
        if not self._used:
            self._used = [OrderedDict() for _ in candidates.endpoints]
        blocks = request.prompts[self.block_tokens][0].block_keys
        load: list[float] = candidates.in_flight.tolist()
        row = load.index(min(load))
        if not self._is_imbalanced(load):
            held = self._tree.match(blocks)
            best = max(held, key=held.__getitem__, default=row)
            if held.get(best, 0) > self.cache_threshold * len(blocks):
                row = best
        self._insert(row, blocks)
        return chosen(candidates, row)

    def _is_imbalanced(self, load: list[float]) -> bool:
        most, least = max(load), min(load)
        absolute = most - least > self.balance_abs_threshold
        return absolute and most > self.balance_rel_threshold * least

    def _insert(self, row: int, blocks: Sequence[int]) -> None:
        used = self._used[row]
        for block in reversed(blocks):
            used[block] = None
            used.move_to_end(block)
        now = self.clock()
        self._tree.send(now, row, blocks, ())
        if now >= self._next_eviction:
            self._next_eviction = now + self.evict_seconds
            for each, blocks_used in enumerate(self._used):
                self._evict(each, blocks_used, now)
        self._tree.deliver(now)

    def _evict(self, row: int, used: OrderedDict[int, None], now: float) -> None:
        surplus = len(used) - self.max_tree_tokens // self.block_tokens
        gone = [used.popitem(last=False)[0] for _ in range(surplus)]
        self._tree.send(now, row, (), gone)
