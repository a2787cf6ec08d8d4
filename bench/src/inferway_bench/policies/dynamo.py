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

import numpy as np

from inferway.model import Candidates, Column, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.plugin import RequestListener, RequestOutcome
from inferway_bench.policies.holders import Holders
from inferway_bench.policies.simple import chosen


@dataclass(slots=True)
class _Books:
    """What the router knows of all workers by its own requests."""

    prefill_tokens: Column
    num_used: Column  # blocks in use
    used: Holders = field(default_factory=Holders)
    _users: dict[tuple[int, int], int] = field(default_factory=dict)  # (worker, block) -> requests

    def use(self, worker: int, blocks: Sequence[int]) -> None:
        users, new = self._users, []
        for block in blocks:
            count = users.get((worker, block), 0)
            users[worker, block] = count + 1
            if not count:
                new.append(block)
        self.used.add(worker, new)
        self.num_used[worker] += len(new)

    def free(self, worker: int, blocks: Sequence[int]) -> None:
        users, gone = self._users, []
        for block in blocks:
            left = users[worker, block] - 1
            if left:
                users[worker, block] = left
            else:
                del users[worker, block]
                gone.append(block)
        self.used.remove(worker, gone)
        self.num_used[worker] -= len(gone)


@dataclass(slots=True)
class DynamoCost:
    """Chooses the smallest cost, and follows the request that it has routed."""

    random: Random
    block_tokens: int
    _books: _Books | None = None

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        num = len(candidates.endpoints)
        if self._books is None:
            self._books = _Books(np.zeros(num), np.zeros(num))
        books, prompt = self._books, request.prompts[self.block_tokens][0]
        blocks, tokens = prompt.block_keys, len(prompt.token_ids)
        costs: Column = (books.prefill_tokens + tokens) / self.block_tokens
        costs -= candidates.matched_blocks
        costs += books.num_used + len(blocks)
        for worker, count in books.used.match(blocks).items():
            costs[worker] -= count
        best = (costs == costs.min()).nonzero()[0].tolist()
        return chosen(candidates, best[0] if len(best) == 1 else self.random.choice(best))

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener:
        target = choice.targets[0]
        prompt = request.prompts[self.block_tokens][0]
        new = len(prompt.token_ids) - target.matched_blocks * self.block_tokens
        assert self._books is not None
        return _Booked(self._books, target.endpoint.holder, prompt.block_keys, max(0, new))


class _Booked(RequestListener):
    """One request on its worker."""

    def __init__(self, books: _Books, worker: int, blocks: Sequence[int], new_tokens: int) -> None:
        self._books, self._worker = books, worker
        self._blocks, self._new_tokens = blocks, new_tokens
        books.prefill_tokens[worker] += new_tokens
        books.use(worker, blocks)

    def on_first_chunk(self, now: float) -> None:
        self._books.prefill_tokens[self._worker] -= self._new_tokens

    def on_end(self, ending: RequestOutcome) -> None:
        self._books.free(self._worker, self._blocks)
