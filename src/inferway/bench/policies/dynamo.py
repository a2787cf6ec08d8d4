"""Dynamo's KV router (1.6): a model of its cost and of its book-keeping.

    cost = blocks of prompts to be computed there, with this one, but for what is cached there
         + blocks in use there, with this one's

The smallest cost is chosen (temperature 0), at random among equals. A prompt counts as to be
computed until its first token, its blocks as in use until its end; equal blocks count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from inferway.bench.policies.simple import chosen
from inferway.model import Candidates, Choice
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.plugin import Ending, Follower


@dataclass(slots=True)
class _Worker:
    """What the router knows of an engine, from its own requests."""

    prefill_tokens: int = 0
    users: dict[int, int] = field(default_factory=dict)  # block in use -> requests

    def use(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.users[block] = self.users.get(block, 0) + 1

    def free(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            left = self.users[block] - 1
            if left:
                self.users[block] = left
            else:
                del self.users[block]

    def with_blocks(self, blocks: Sequence[int]) -> int:
        """Blocks in use, were these used too. Whoever uses a block uses all before it."""
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) >> 1
            if blocks[middle] in self.users:
                low = middle + 1
            else:
                high = middle
        return len(self.users) + len(blocks) - low


@dataclass(slots=True)
class DynamoCost:
    """Chooses, and follows what it has chosen."""

    random: Random
    block_tokens: int
    _workers: list[_Worker] = field(default_factory=list)

    def choose(self, request: LLMRequest, candidates: Candidates) -> Choice:
        if not self._workers:
            self._workers = [_Worker() for _ in candidates.endpoints]
        size, prompt = self.block_tokens, request.prompts[self.block_tokens][0]
        blocks, tokens = prompt.block_keys, len(prompt.token_ids)
        matched = candidates.matched_blocks.tolist()
        costs = [
            (worker.prefill_tokens + tokens) / size - held + worker.with_blocks(blocks)
            for worker, held in zip(self._workers, matched, strict=True)
        ]
        least = min(costs)
        best = [row for row, cost in enumerate(costs) if cost == least]
        return chosen(candidates, best[0] if len(best) == 1 else self.random.choice(best))

    def follow(self, request: LLMRequest, candidates: Candidates, choice: Choice) -> Follower:
        target = choice.targets[0]
        prompt = request.prompts[self.block_tokens][0]
        new = len(prompt.token_ids) - target.matched_blocks * self.block_tokens
        return _Booked(self._workers[target.endpoint.holder], prompt.block_keys, max(0, new))


class _Booked(Follower):
    """One request on its worker."""

    def __init__(self, worker: _Worker, blocks: Sequence[int], new_tokens: int) -> None:
        self._worker, self._blocks, self._new_tokens = worker, blocks, new_tokens
        worker.prefill_tokens += new_tokens
        worker.use(blocks)

    def on_first_chunk(self, now: float) -> None:
        self._worker.prefill_tokens -= self._new_tokens

    def on_end(self, ending: Ending) -> None:
        self._worker.free(self._blocks)
