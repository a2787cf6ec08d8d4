"""The policies by name, and how each is made."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.scheduling.load import KV_AWARE, load_scheduling
from inferway.scheduling.profile import LeastLoaded
from inferway_bench.policies.cache_aware import CacheAware
from inferway_bench.policies.configured import (
    approx_prefix,
    expected_ttft,
    llm_d_default,
    llm_d_whole_prompts,
)
from inferway_bench.policies.deaf import deaf
from inferway_bench.policies.dynamo import DynamoCost
from inferway_bench.policies.gateway import Policy
from inferway_bench.policies.oracle import Oracle
from inferway_bench.policies.simple import Anywhere, ConsistentHash, RoundRobin
from inferway_bench.policies.simulate import MakePolicy, World
from inferway_bench.policies.weighted import Weights, weighted
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


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table."""

    name: str
    about: str
    make: MakePolicy
    is_model: bool = False  # a peer's, written anew: what it does, not the peer itself


def _dynamo(world: World) -> Policy:
    cost = DynamoCost(world.random, world.block_tokens)
    return Policy(cost, following=(cost,), sees_blocks=True)


def _oracle(world: World) -> Policy:
    oracle = Oracle(world.engines, world.requests, world.block_tokens, world.clock)
    return Policy(oracle, sees_truth=True)


ENTRIES = (
    Entry("random", "any engine", lambda world: Policy(Anywhere(world.random))),
    Entry(
        "round-robin",
        "one engine after the other",
        lambda world: Policy(RoundRobin(world.random.randrange(len(world.engines)))),
    ),
    Entry(
        "least-request",
        "fewest requests in flight and scraped (`LeastLoaded`: ours without scoring)",
        lambda _: Policy(LeastLoaded()),
    ),
    Entry(
        "consistent-hash",
        "the session's place on a ring",
        lambda _: Policy(ConsistentHash()),
        is_model=True,
    ),
    Entry(
        "approx-prefix",
        "`prefix-cache-scorer` alone with its approximate producer: no load, 4,096 tokens of a "
        "prompt are compared",
        approx_prefix,
    ),
    Entry(
        LLM_D,
        "what llm-d does by default: `queue-scorer` 2, `kv-cache-utilization-scorer` 2, "
        "approximate `prefix-cache-scorer` 3",
        llm_d_default,
    ),
    Entry(
        "llm-d-whole",
        "the same, but all of a prompt is compared (`maxPrefixBlocksToMatch: 0`)",
        llm_d_whole_prompts,
    ),
    Entry(
        "cache-aware",
        "SGLang's: a tree of prompts sent, load only out of balance",
        lambda world: Policy(CacheAware(world.clock, world.block_tokens)),
        is_model=True,
    ),
    Entry("dynamo-cost", "Dynamo's: blocks to compute + blocks in use", _dynamo, is_model=True),
    Entry(
        "kv-aware",
        "ours by weights: blocks held by KV events, load and recent work",
        lambda _: Policy(load_scheduling(KV_AWARE).chooser, sees_blocks=True),
    ),
    Entry(
        BEST_WEIGHTED,
        "queue, kv and precise prefix scorers, the best weights of a grid for each load",
        weighted(Weights(1, 1, 1)),
    ),
    Entry(
        OURS, "ours by default: expected milliseconds, learned from what streams by", expected_ttft
    ),
    Entry(DEAF, "the same without KV events: it remembers what it has sent where", deaf),
    Entry(ORACLE, "the soonest first token: true caches, queues and latencies", _oracle),
)

_BY_NAME = {entry.name: entry for entry in ENTRIES}
_BY_NAME["least-load"] = _BY_NAME["least-request"]  # as --policy of `inferway serve` calls it


def policy_named(name: str) -> MakePolicy:
    """Raises BenchError for one that is not known."""
    if name not in _BY_NAME:
        raise BenchError(f"no policy {name!r}; known: {', '.join(_BY_NAME)}")
    return _BY_NAME[name].make
