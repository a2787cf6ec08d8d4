"""The policies by name, and how each is made: production's plugins, configured as `inferway serve`
builds them, and models of peers' rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from inferway.model import ROLE, Endpoint, KvConnector, KvTransfer
from inferway.openai_api.llm_request import BYTES_PER_TOKEN
from inferway.scheduling.config import build
from inferway.scheduling.document import parse_config
from inferway.scheduling.load import KV_AWARE, KnownTypes, load_scheduling
from inferway.scheduling.profile import LeastLoaded
from inferway_bench.policies.gateway import Policy, endpoints_of
from inferway_bench.policies.requests import CHARS_A_BLOCK
from inferway_bench.policies.rules import (
    Anywhere,
    CacheAware,
    ConsistentHash,
    InTwoLegs,
    Memory,
    Oracle,
    RoundRobin,
)
from inferway_bench.policies.sharing import sharing_named
from inferway_bench.policies.simulate import MakePolicy, World
from inferway_bench.processes import BenchError
from inferway_llmd.scheduling.producers.approx_prefix_cache import ApproxPrefixCacheParameters
from inferway_llmd.scheduling.producers.sent_blocks import SentBlocks

OURS = "expected-ttft"
DEAF = "expected-ttft-deaf"
FULL_ALONE = "expected-ttft-full-attention"  # of hybrid models its index knows this group alone
ORACLE = "oracle"
LLM_D = "llm-d-default"
# Whether prompts are computed apart from where they are answered: see WITH_LEGS.
NEVER, LEARNED, ALWAYS, THRESHOLD = "never", "learned", "always", "llm-d-pd"
# Peers' policies that guess what engines hold by what was sent there, and those that are told.
APPROXIMATE = ("approx-prefix", LLM_D, "llm-d-whole", "cache-aware")
EVENT_DRIVEN = ("kv-aware",)

_ENGINE_BLOCK = 16  # tokens: vLLM's blocks, which llm-d's defaults are made for
_LLM_D = {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0}


def configured(world: World, weights: Mapping[str, float], **parameters: Any) -> Policy:
    """Return a policy of these scorers with their weights. `parameters` are the approximate
    producer's; without them, KV events are heard."""
    plugins: list[dict[str, Any]] = [{"type": name} for name in weights]
    if parameters:
        plugins.append({"type": "approx-prefix-cache-producer", "parameters": parameters})
    refs = [{"pluginRef": name, "weight": weight} for name, weight in weights.items()]
    profiles = [{"name": "default", "plugins": refs}]
    config = parse_config({"plugins": plugins, "schedulingProfiles": profiles}, "policy")
    made = build(config, "policy", KnownTypes(), world.random)
    return Policy(made.chooser, made.producers, made.following, sees_blocks=not parameters)


def approximate(world: World, *, whole: bool = False) -> dict[str, Any]:
    """Return the approximate producer's defaults at the grain of the workload: as many tokens of a
    prompt are looked at, or the `whole` prompt, and as many remembered for each engine."""
    defaults, size = ApproxPrefixCacheParameters(), world.block_tokens
    most = defaults.max_prefix_blocks_to_match * _ENGINE_BLOCK // size
    return {
        "autoTune": False,
        "blockSizeTokens": CHARS_A_BLOCK // BYTES_PER_TOKEN,
        "maxPrefixBlocksToMatch": 0 if whole else most,
        "lruCapacityPerServer": defaults.lru_capacity_per_server * _ENGINE_BLOCK // size,
    }


def _expected_ttft(world: World) -> Policy:
    return configured(world, {"expected-ttft": 1.0})


def _deaf(world: World) -> Policy:
    ours = _expected_ttft(world)
    memory = Memory(world.block_tokens, SentBlocks(world.engines[0].cache.capacity))
    return Policy(ours.chooser, (memory, *ours.producers), (memory, *ours.following))


def _endpoints(world: World, prefill: int) -> list[Endpoint]:
    """Engines that can hand blocks to each other, of which so many only compute prompts."""
    transfer, made = KvTransfer(KvConnector.NIXL), endpoints_of(len(world.engines))
    roles = ["prefill"] * prefill + ["decode"] * (len(made) - prefill) if prefill else []
    labels = [{ROLE: role} for role in roles] or [{}] * len(made)
    return [
        replace(each, labels=label, kv_transfer=transfer)
        for each, label in zip(made, labels, strict=True)
    ]


def _always(world: World, prefill: int) -> Policy:
    """Of expected-ttft's pairs the cheapest, for each request."""
    ours = _expected_ttft(world)
    return replace(ours, chooser=InTwoLegs(ours.chooser), endpoints=_endpoints(world, prefill))


def _llm_d_pd(world: World, prefill: int) -> Policy:
    """deploy/config/pd-epp-config.yaml of llm-d-router ebab687; what is held is known by KV events
    (precise-prefix-cache-scorer), so that it differs by its decisions alone."""
    scorers = [
        {"pluginRef": "max-score-picker"},
        {"pluginRef": "precise-prefix-cache-scorer", "weight": 2},
        {"pluginRef": "queue-scorer", "weight": 1},
    ]
    decider = "prefix-based-pd-decider"
    parameters: dict[str, Any] = {
        "disagg-profile-handler": {"deciders": {"prefill": decider}},
        decider: {"nonCachedTokens": 16},
    }
    names = ("precise-prefix-cache-scorer", "queue-scorer", "prefill-filter", "decode-filter")
    plugins = [
        {"type": name, "parameters": parameters.get(name, {})}
        for name in (*names, "max-score-picker", "disagg-profile-handler", decider)
    ]
    profiles = [
        {"name": each, "plugins": [{"pluginRef": f"{each}-filter"}, *scorers]}
        for each in ("prefill", "decode")
    ]
    config = parse_config({"plugins": plugins, "schedulingProfiles": profiles}, "policy")
    made = build(config, "policy", KnownTypes(), world.random)
    endpoints = _endpoints(world, prefill or len(world.engines) // 2)
    return Policy(made.chooser, made.producers, made.following, True, endpoints=endpoints)


def _oracle(world: World) -> Policy:
    oracle = Oracle(world.engines, world.requests, world.block_tokens, world.clock)
    return Policy(oracle, sees_truth=True)


# Of consistent-hash and cache-aware the peers' rules are written anew; the others are
# production code. docs/benchmarks/policies.md says what each does.
POLICIES: dict[str, MakePolicy] = {
    "random": lambda world: Policy(Anywhere(world.random)),
    "round-robin": lambda world: Policy(RoundRobin(world.random.randrange(len(world.engines)))),
    "least-request": lambda _: Policy(LeastLoaded()),
    "consistent-hash": lambda _: Policy(ConsistentHash()),
    "approx-prefix": lambda w: configured(w, {"prefix-cache-scorer": 1.0}, **approximate(w)),
    LLM_D: lambda w: configured(w, _LLM_D, **approximate(w)),
    "llm-d-whole": lambda w: configured(w, _LLM_D, **approximate(w, whole=True)),
    "cache-aware": lambda world: Policy(CacheAware(world.block_tokens)),
    "kv-aware": lambda _: Policy(load_scheduling(KV_AWARE).chooser, sees_blocks=True),
    OURS: _expected_ttft,
    DEAF: _deaf,
    ORACLE: _oracle,
}
# "least-load" as `inferway serve` calls it
_NAMED: dict[str, MakePolicy] = {
    **POLICIES,
    "least-load": POLICIES["least-request"],
    NEVER: POLICIES[OURS],
    FULL_ALONE: lambda world: replace(_expected_ttft(world), knows_groups=False),
}


def alone(policy: str) -> str:
    """Return the policy's name without what its gateways share."""
    return policy.partition("+")[0]


def policy_named(name: str) -> MakePolicy:
    """Return how the policy is made; the gateways of NAME+SHARING tell each other what they do.
    Raises BenchError for one that is not known."""
    _, _, shared = name.partition("+")
    if shared:
        make, sharing = policy_named(alone(name)), sharing_named(shared)
        return lambda world: replace(make(world), sharing=sharing)
    kind, _, prefill = name.partition("@")
    if name in _NAMED:
        return _NAMED[name]
    if kind in WITH_LEGS and (prefill.isdecimal() or not prefill):
        return lambda world: WITH_LEGS[kind](world, int(prefill or 0))
    known = ", ".join([*_NAMED, *WITH_LEGS])
    raise BenchError(
        f"no policy {name!r}; known: {known}, and NAME@PREFILL of the last three, and NAME+SHARING"
    )


# Policies for engines that can hand blocks to each other. With `prefill` engines that only compute
# prompts, the others only decode; with 0 each does both, but llm-d's, which then has half of each.
WITH_LEGS: Mapping[str, Callable[[World, int], Policy]] = {
    LEARNED: lambda world, prefill: replace(
        _expected_ttft(world), endpoints=_endpoints(world, prefill)
    ),
    ALWAYS: lambda world, prefill: _always(world, prefill),
    THRESHOLD: lambda world, prefill: _llm_d_pd(world, prefill),
}
