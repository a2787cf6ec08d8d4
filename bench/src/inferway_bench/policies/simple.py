"""Policies that know nothing of caches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import xxhash

from inferway.model import Candidates, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest


def chosen(candidates: Candidates, row: int) -> SchedulingResult:
    """Return the choice of the candidate in this row."""
    matched, blocks = candidates.matched_blocks[row], candidates.prompt_blocks[row]
    return SchedulingResult((Target(candidates.endpoints[row], 0.0, int(matched), int(blocks)),))


@dataclass(frozen=True, slots=True)
class Anywhere:
    """Chooses each engine with the same probability."""

    random: Random

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        return chosen(candidates, self.random.randrange(len(candidates.endpoints)))


@dataclass(slots=True)
class RoundRobin:
    """Chooses one engine after the other."""

    turn: int

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        self.turn = (self.turn + 1) % len(candidates.endpoints)
        return chosen(candidates, self.turn)


@dataclass(slots=True)
class ConsistentHash:
    """Chooses by a session's name on a ring with `points` points for each engine, as vllm-router's
    `consistent_hash`."""

    points: int = 160
    _ring: list[tuple[int, int]] = field(default_factory=list)  # (point, row), in order

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        ring = self._ring
        if not ring:
            ring += sorted(
                (xxhash.xxh64_intdigest(f"{endpoint.name}#{i}".encode()), row)
                for row, endpoint in enumerate(candidates.endpoints)
                for i in range(self.points)
            )
        name = request.header(b"x-session-id") or b""
        at = bisect_left(ring, (xxhash.xxh64_intdigest(name), 0))
        return chosen(candidates, ring[at % len(ring)][1])


@dataclass(frozen=True, slots=True)
class Divided:
    """Chooses for each session the engine that `rows` has for it."""

    rows: Mapping[int, int]

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        return chosen(candidates, self.rows[int(request.header(b"x-session-id") or b"")])
