"""The policies by name, and how each is made."""

from __future__ import annotations

from inferway.scheduling.load import KV_AWARE, load_scheduling
from inferway.scheduling.profile import LeastLoaded
from inferway_bench.policies.cache_aware import CacheAware
from inferway_bench.policies.configured import (
    Weights,
    approx_prefix,
    expected_ttft,
    llm_d_default,
    llm_d_whole_prompts,
    weighted,
)
from inferway_bench.policies.deaf import deaf
from inferway_bench.policies.dynamo import DynamoCost
from inferway_bench.policies.gateway import Policy
from inferway_bench.policies.oracle import Oracle
from inferway_bench.policies.simple import Anywhere, ConsistentHash, RoundRobin
from inferway_bench.policies.simulate import MakePolicy, World
from inferway_bench.processes import BenchError

OURS = "expected-ttft"
DEAF = "expected-ttft-deaf"
ORACLE = "oracle"
LLM_D = "llm-d-default"
BEST_WEIGHTED = "best-weighted"  # its weights are fitted
# Peers' policies that guess what engines hold by what was sent there, and those that are told.
APPROXIMATE = ("approx-prefix", LLM_D, "llm-d-whole", "cache-aware")
BLIND = ("round-robin", "least-request", "consistent-hash")
EVENT_DRIVEN = ("dynamo-cost", BEST_WEIGHTED)


def _dynamo(world: World) -> Policy:
    cost = DynamoCost(world.random, world.block_tokens)
    return Policy(cost, following=(cost,), sees_blocks=True)


def _oracle(world: World) -> Policy:
    oracle = Oracle(world.engines, world.requests, world.block_tokens, world.clock)
    return Policy(oracle, sees_truth=True)


# Of consistent-hash, cache-aware and dynamo-cost the peers' rules are written anew; the others are
# production code. docs/benchmarks/policies.md says what each does.
POLICIES: dict[str, MakePolicy] = {
    "random": lambda world: Policy(Anywhere(world.random)),
    "round-robin": lambda world: Policy(RoundRobin(world.random.randrange(len(world.engines)))),
    "least-request": lambda _: Policy(LeastLoaded()),
    "consistent-hash": lambda _: Policy(ConsistentHash()),
    "approx-prefix": approx_prefix,
    LLM_D: llm_d_default,
    "llm-d-whole": llm_d_whole_prompts,
    "cache-aware": lambda world: Policy(CacheAware(world.block_tokens)),
    "dynamo-cost": _dynamo,
    "kv-aware": lambda _: Policy(load_scheduling(KV_AWARE).chooser, sees_blocks=True),
    BEST_WEIGHTED: weighted(Weights(1, 1, 1)),
    OURS: expected_ttft,
    DEAF: deaf,
    ORACLE: _oracle,
}
_NAMED = {**POLICIES, "least-load": POLICIES["least-request"]}  # as `inferway serve` calls it


def policy_named(name: str) -> MakePolicy:
    """Return how the policy is made. Raises BenchError for one that is not known."""
    if name not in _NAMED:
        raise BenchError(f"no policy {name!r}; known: {', '.join(_NAMED)}")
    return _NAMED[name]
