"""Policies that know nothing of caches, or guess: models of peers' rules among them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import xxhash

from inferway.model import Candidates, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.expected_ttft.legs import best_pair
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway.scheduling.plugin import ProfileHandler
from inferway.scheduling.roles import Roles, roles_of
from inferway_llmd.scheduling.producers.sent_blocks import SentBlocks


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


@dataclass(slots=True)
class CacheAware:
    """SGLang's `cache_aware` (sglang-router 0.3.2), at the grain of blocks; its thresholds are the
    router's defaults.

    A tree of all prompts sent guesses, for each engine, what it holds; nothing is heard from them.
    While the fleet is in balance, a prompt goes where most of it was sent before, if that is more
    than `cache_threshold` of it; else, and out of balance, to the engine with the fewest requests.
    What was used least recently leaves an engine's tree when it does not fit `max_tree_tokens`
    (SGLang looks every two minutes).
    """

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
        most, least = max(load), min(load)
        row = load.index(least)
        names = [endpoint.name for endpoint in candidates.endpoints]
        is_uneven = most - least > self.balance_abs_threshold
        if not (is_uneven and most > self.balance_rel_threshold * least):
            held = self._sent.held(blocks)[self._sent.places(names)]
            best = int(held.argmax())
            if held[best] > self.cache_threshold * len(blocks):
                row = best
        self._sent.add(names[row], blocks)
        return chosen(candidates, row)


@dataclass(frozen=True, slots=True)
class InTwoLegs:
    """Chooses the pair that costs the least, whatever one leg costs; `chooser` where no engine has
    room to decode."""

    chooser: ProfileHandler
    _roles: PerEndpoint[Roles | None] = field(default_factory=lambda: PerEndpoint(roles_of))

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        roles = self._roles(candidates.endpoints)
        pair = None if roles is None else best_pair(candidates, roles.groups, roles.engines)
        if pair is None:
            return self.chooser.choose(request, candidates)
        prefill = [chosen(candidates, row).targets[0] for row in pair.prefill]
        decode = chosen(candidates, pair.decode).targets
        return SchedulingResult(decode, prefill=tuple(prefill))


@dataclass(frozen=True, slots=True)
class Divided:
    """Chooses for each session the engine that `rows` has for it."""

    rows: Mapping[int, int]

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        return chosen(candidates, self.rows[int(request.header(b"x-session-id") or b"")])
