"""Policies that are configurations of production's plugins, built as by `inferway serve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import gcd
from typing import Any

import msgspec

from inferway.openai_api.llm_request import BYTES_PER_TOKEN
from inferway.scheduling.builtin import BUILTIN
from inferway.scheduling.config import build
from inferway.scheduling.document import parse_config
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.producers.approx_prefix_cache import ApproxPrefixCacheParameters
from inferway.scheduling.profile import Profile, Weighted
from inferway.scheduling.scorers.load import KVCacheUtilization, Queue
from inferway.scheduling.scorers.prefix_match import PrefixMatch
from inferway_bench.policies.gateway import Policy
from inferway_bench.policies.requests import CHARS_A_BLOCK
from inferway_bench.policies.simulate import World

_ENGINE_BLOCK = 16  # tokens: vLLM's blocks, which llm-d's defaults are made for
_APPROXIMATE = "approx-prefix-cache-producer"


def configured(world: World, weights: Mapping[str, float], **parameters: Any) -> Policy:
    """Return a policy of these scorers with their weights. `parameters` are the approximate
    producer's; without them, KV events are heard."""
    types: list[dict[str, Any]] = [{"type": name} for name in weights]
    if parameters:
        types.append({"type": _APPROXIMATE, "parameters": parameters})
    refs = [{"pluginRef": name, "weight": weight} for name, weight in weights.items()]
    fields = {
        "plugins": types,
        "schedulingProfiles": [{"name": "default", "plugins": refs}],
    }
    config = parse_config(fields, "policy")
    scheduling = build(config, "policy", BUILTIN, world.random)
    return Policy(
        scheduling.chooser,
        scheduling.producers,
        scheduling.following,
        sees_blocks=not parameters,
    )


def approximate(world: World, *, whole: bool = False) -> dict[str, Any]:
    """Return the approximate producer's defaults at the grain of the workload: as many tokens of a
    prompt are looked at, and as many remembered for each engine. `whole` has it look at all of a
    prompt."""
    defaults = ApproxPrefixCacheParameters()
    tokens = defaults.max_prefix_blocks_to_match * _ENGINE_BLOCK
    remembered = defaults.lru_capacity_per_server * _ENGINE_BLOCK
    return {
        "autoTune": False,
        "blockSizeTokens": CHARS_A_BLOCK // BYTES_PER_TOKEN,
        "maxPrefixBlocksToMatch": 0 if whole else tokens // world.block_tokens,
        "lruCapacityPerServer": remembered // world.block_tokens,
    }


def approx_prefix(world: World) -> Policy:
    """Return llm-d's prefix-cache-scorer alone, with its approximate producer."""
    return configured(world, {"prefix-cache-scorer": 1.0}, **approximate(world))


def llm_d_default(world: World) -> Policy:
    """Return what llm-d does when nothing is configured."""
    return configured(world, _LLM_D, **approximate(world))


def llm_d_whole_prompts(world: World) -> Policy:
    """Return llm-d's default with all of each prompt compared."""
    return configured(world, _LLM_D, **approximate(world, whole=True))


def expected_ttft(world: World) -> Policy:
    """Return Inferway's default."""
    return configured(world, {"expected-ttft": 1.0})


_LLM_D = {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0}


class Weights(msgspec.Struct, frozen=True, order=True):
    """The weights of queue-scorer, kv-cache-utilization-scorer and prefix-cache-scorer."""

    queue: int
    kv: int
    prefix: int

    def __str__(self) -> str:
        return f"{self.queue}:{self.kv}:{self.prefix}"


def grid(weights: tuple[int, ...]) -> list[Weights]:
    """Return all combinations of `weights` that differ by more than a factor."""
    return [Weights(*w) for w in product(weights, repeat=3) if gcd(*w) == 1]


def weighted(weights: Weights) -> Callable[[World], Policy]:
    """Return llm-d's three scorers, weighted, told by KV events what the engines hold."""

    def make(_: World) -> Policy:
        scorers = (
            Weighted(Queue(), weights.queue),
            Weighted(KVCacheUtilization(), weights.kv),
            Weighted(PrefixMatch(), weights.prefix),
        )
        return Policy(Profile(MaxScore(), scorers), sees_blocks=True)

    return make
