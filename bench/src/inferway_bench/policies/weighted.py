"""Profiles of llm-d's three scorers, weighted, with blocks known precisely; and the weights that
are tried."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import gcd

import msgspec

from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.profile import Profile, Weighted
from inferway.scheduling.scorers.load import KVCacheUtilization, Queue
from inferway.scheduling.scorers.prefix_match import PrefixMatch
from inferway_bench.policies.gateway import Policy
from inferway_bench.policies.simulate import World

_WEIGHTS = (0, 1, 2, 4, 8)


class Weights(msgspec.Struct, frozen=True, order=True):
    """Of queue-scorer, kv-cache-utilization-scorer and prefix-cache-scorer."""

    queue: int
    kv: int
    prefix: int

    def __str__(self) -> str:
        return f"{self.queue}:{self.kv}:{self.prefix}"


def grid(weights: tuple[int, ...] = _WEIGHTS) -> list[Weights]:
    """All that differ by more than a factor."""
    return [Weights(*w) for w in product(weights, repeat=3) if gcd(*w) == 1]


def weighted(weights: Weights) -> Callable[[World], Policy]:
    """The profile, told by KV events what the engines hold."""

    def make(_: World) -> Policy:
        scorers = (
            Weighted(Queue(), weights.queue),
            Weighted(KVCacheUtilization(), weights.kv),
            Weighted(PrefixMatch(), weights.prefix),
        )
        return Policy(Profile(MaxScore(), scorers), sees_blocks=True)

    return make
