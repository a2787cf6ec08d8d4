"""Ours without KV events: the same costs and the same learning, but what an engine holds is guessed
by what this gateway has sent there, as much of it as fits the engine's cache. The difference of the
two is what events buy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferway.model import Candidates, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.plugin import RequestListener
from inferway_llmd.scheduling.producers.sent_blocks import SentBlocks


@dataclass(slots=True)
class Memory:
    """Fills the columns that KV events would fill with what was sent."""

    block_tokens: int
    sent: SentBlocks
    _places: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    _version: int = -1  # of `sent`, that the places hold for

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        blocks, sent = self._blocks(request), self.sent
        if self._version != sent.version:
            self._places = sent.places(endpoint.name for endpoint in candidates.endpoints)
            self._version = sent.version
        candidates.matched_blocks = candidates.weighted_matched_blocks = sent.held(blocks)[
            self._places
        ]
        candidates.prompt_blocks = np.full(len(candidates.endpoints), float(len(blocks)))

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener:
        return _Sent(self.sent, self._blocks(request))

    def _blocks(self, request: LLMRequest) -> Sequence[int]:
        return request.prompts[self.block_tokens][0].block_keys


@dataclass(slots=True)
class _Sent(RequestListener):
    sent: SentBlocks
    blocks: Sequence[int]

    def on_attempt(self, target: Target, now: float) -> Headers:
        self.sent.add(target.endpoint.name, self.blocks)
        return ()
