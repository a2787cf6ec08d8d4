"""SGLang's `cache_aware` (sglang-router 0.3.2), at the grain of blocks: a model of it.

A tree of all prompts sent guesses, for each engine, what it holds; nothing is heard from them.
While the fleet is in balance, a prompt goes where most of it was sent before, if that is more than
`cache_threshold` of it; else, and out of balance, to the engine with the fewest requests. What was
used least recently leaves an engine's tree when it does not fit `max_tree_tokens` (SGLang looks
every two minutes).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.producers.sent_blocks import SentBlocks
from inferway_bench.policies.simple import chosen


@dataclass(slots=True)
class CacheAware:
    """Its thresholds are the router's defaults."""

    block_tokens: int
    cache_threshold: float = 0.3
    balance_abs_threshold: float = 64
    balance_rel_threshold: float = 1.5
    max_tree_tokens: int = 2**26 // 4  # 2^26 characters
    _sent: SentBlocks = field(init=False)

    def __post_init__(self) -> None:
        self._sent = SentBlocks(self.max_tree_tokens // self.block_tokens)

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        blocks = request.prompts[self.block_tokens][0].block_keys
        load: list[float] = candidates.in_flight.tolist()
        row = load.index(min(load))
        names = [endpoint.name for endpoint in candidates.endpoints]
        if not self._is_imbalanced(load):
            held = self._sent.held(blocks)[self._sent.places(names)]
            best = int(held.argmax())
            if held[best] > self.cache_threshold * len(blocks):
                row = best
        self._sent.add(names[row], blocks)
        return chosen(candidates, row)

    def _is_imbalanced(self, load: list[float]) -> bool:
        most, least = max(load), min(load)
        absolute = most - least > self.balance_abs_threshold
        return absolute and most > self.balance_rel_threshold * least
