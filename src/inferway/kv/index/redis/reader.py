"""What the server knows of a prompt: one round trip each, and no longer than `within` seconds."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence

from redis.exceptions import RedisError

from inferway.errors import IndexAwayError
from inferway.kv.index.protocol import MatchResult, Tier
from inferway.kv.index.redis.connection_health import ConnectionHealth, RedisStats
from inferway.kv.index.redis.scripts import MATCH
from inferway.kv.index.redis.writer import HolderRegistry
from inferway.model import BlockKey, HolderId

# Matches of one request in one round trip. Each takes the server some 0.2 ms for 8 engines, and all
# of them must be answered in time.
TOGETHER = 8


class IndexReader:
    """The reading side of `RedisIndex`."""

    def __init__(
        self,
        link: ConnectionHealth,
        roll: HolderRegistry,
        stats: RedisStats,
        weights: Sequence[float],
        within: float,
    ) -> None:
        self._link = link
        self._roll = roll
        self._stats = stats
        self._weights = weights
        self._within = within

    async def match_all(self, prompts: Sequence[Sequence[BlockKey]]) -> list[MatchResult]:
        """Raises IndexAwayError if one of them is not answered in time."""
        found: list[MatchResult] = []
        for first in range(0, len(prompts), TOGETHER):
            found += await asyncio.gather(*map(self.match, prompts[first : first + TOGETHER]))
        return found

    async def match(self, keys: Sequence[BlockKey]) -> MatchResult:
        """Raises IndexAwayError if the server does not answer in time."""
        link, stats, roll = self._link, self._stats, self._roll
        if not keys or not roll.names:
            return MatchResult({})
        stats.matches += 1
        if not link.is_up:
            stats.refused += 1
            raise IndexAwayError(f"index {link.shown} is away")
        prompt = struct.pack(f"<{len(keys)}Q", *keys)
        holders, asked = roll.named, time.perf_counter()  # uvloop's clock counts milliseconds
        try:
            answer = await link.asking.ask(MATCH, roll.names, (prompt,), within=self._within)
        except TimeoutError:
            link.too_late()
            raise IndexAwayError(f"index {link.shown}: no answer within {self._within} s") from None
        except RedisError as e:
            stats.refused += 1
            link.trouble(e)
            raise IndexAwayError(f"index {link.shown} is away: {e}") from e
        link.in_time()
        stats.answered += 1
        stats.answer_seconds += time.perf_counter() - asked
        return self._found(holders, answer)

    def _found(self, holders: Sequence[HolderId], answer: bytes) -> MatchResult:
        """From the numbers that scripts.MATCH answers."""
        numbers = map(int, answer.split())
        blocks: dict[HolderId, int] = {}
        discount: dict[HolderId, float] = {}
        lower: dict[HolderId, dict[Tier, int]] = {}
        for place in numbers:
            holder = holders[place]
            blocks[holder] = next(numbers)
            for _ in range(next(numbers)):
                tier, count = next(numbers), next(numbers)
                lower.setdefault(holder, {})[tier] = next(numbers)
                less = 1.0 - self._weights[min(tier, len(self._weights) - 1)]
                if less:
                    discount[holder] = discount.get(holder, 0.0) + less * count
        return MatchResult(blocks, discount, lower)
