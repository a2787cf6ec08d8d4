"""A policy that knows everything: true caches, true queues, the true latency model. It chooses the
engine where the request's first token will come soonest, as `expected-ttft` means to; it does not
look further than that, so another policy may do better by doing worse now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.plugin import Picker
from inferway_bench.policies.engine import Engine, EngineSpec
from inferway_bench.policies.requests import SimRequest
from inferway_bench.policies.simple import chosen


@dataclass(frozen=True, slots=True)
class Oracle:
    """Chooses the soonest first token. `candidates.matched_blocks` must be true."""

    engines: Sequence[Engine]
    requests: Sequence[SimRequest]
    block_tokens: int
    clock: Callable[[], float]
    picker: Picker = field(default_factory=MaxScore)

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        now, size = self.clock(), self.block_tokens
        asked = self.requests[int(request.request_id)]
        tokens = asked.prompt_tokens
        most = (tokens - 1) // size
        scores = np.zeros(len(self.engines))
        for row, held in enumerate(candidates.matched_blocks.tolist()):
            reused = min(int(held), most)
            scores[row] = -expected(self.engines[row], asked, tokens - reused * size, now)
        return chosen(candidates, self.picker.pick(scores, 1)[0])


def expected(engine: Engine, request: SimRequest, uncached_tokens: int, now: float) -> float:
    """Return the seconds to the first token of `request`, if it is added now. They are exact on an
    engine whose batch stays as it is and has room; requests that begin to decode meanwhile are left
    out."""
    spec = engine.spec
    num_decoding = len(engine.decoding)
    tokens, seconds = uncached_tokens, _seconds(spec, request, uncached_tokens)
    for job in engine.prefilling:
        tokens += job.left
        seconds += _seconds(spec, job.request, job.left)
    for job in engine.waiting:
        tokens += job.expected_uncached
        seconds += _seconds(spec, job.request, job.expected_uncached)
    steps = -(-tokens // (spec.max_batched_tokens - num_decoding))
    step_seconds = spec.step_seconds + num_decoding * spec.decode_seconds
    seconds += steps * step_seconds
    room = engine.steps_until_room(request)
    if room:
        own = spec.idle_ttft(request.prompt_tokens, request.prompt_tokens - uncached_tokens)
        seconds = max(seconds, room * step_seconds + own)
    return engine.step_remainder(now) + seconds


def _seconds(spec: EngineSpec, request: SimRequest, left: int) -> float:
    """For the last `left` tokens of a prompt."""
    return spec.prompt_seconds(request.prompt_tokens - left, request.prompt_tokens)
