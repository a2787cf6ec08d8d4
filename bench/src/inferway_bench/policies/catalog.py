"""The policies by name, and how each is made: production's plugins, configured as `inferway serve`
builds them; models of peers' rules, and of published ones (`published`); ours without KV events;
and the oracle."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from inferway.model import (
    ROLE,
    Candidates,
    Endpoint,
    Headers,
    KvConnector,
    KvTransfer,
    SchedulingResult,
    Target,
)
from inferway.openai_api.llm_request import BYTES_PER_TOKEN, LLMRequest
from inferway.scheduling.config import build
from inferway.scheduling.document import parse_config
from inferway.scheduling.expected_ttft.legs import best_pair
from inferway.scheduling.load import KV_AWARE, KnownTypes, load_scheduling
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.plugin import Picker, ProfileHandler, RequestListener
from inferway.scheduling.prefix_source import APPROXIMATE, PRECISE
from inferway.scheduling.profile import LeastLoaded
from inferway.scheduling.roles import Roles, roles_of
from inferway_bench.policies.engine import Engine, EngineSpec
from inferway_bench.policies.gateway import Policy, chosen, endpoints_of, sharing_named
from inferway_bench.policies.published import (
    DualMap,
    DynamoCost,
    LMetric,
    Lodestar,
    Preble,
    published,
)
from inferway_bench.policies.requests import CHARS_A_BLOCK, SimRequest
from inferway_bench.policies.simulate import MakePolicy, World
from inferway_bench.processes import BenchError
from inferway_llmd.scheduling.producers.approx_prefix_cache import ApproxPrefixCacheParameters
from inferway_llmd.scheduling.producers.sent_blocks import SentBlocks

OURS = "expected-ttft"
HELD = "goodput-admission"  # beside ours: requests wait at the gateway
DEAF = "expected-ttft-deaf"
FULL_ALONE = "expected-ttft-full-attention"  # of hybrid models its index knows this group alone
ORACLE = "oracle"
LLM_D = "llm-d-default"
LLM_D_NEW = "llm-d-affinity"
# Whether prompts are computed apart from where they are answered: see WITH_LEGS.
NEVER, LEARNED, ALWAYS, THRESHOLD = "never", "learned", "always", "llm-d-pd"

_ENGINE_BLOCK = 16  # tokens: vLLM's blocks, which llm-d's defaults are made for
_LLM_D = {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0}


def configured(
    world: World,
    weights: Mapping[str, float],
    producers: Mapping[str, Mapping[str, Any]] | None = None,
    filters: Mapping[str, Mapping[str, Any]] | None = None,
) -> Policy:
    """Return a policy of these scorers with their weights, behind filters. The others have their
    parameters; without the approximate producer, KV events are heard."""
    producers, filters = producers or {}, filters or {}
    given = {**producers, **filters, **{name: {} for name in weights}}
    plugins = [{"type": name, "parameters": parameters} for name, parameters in given.items()]
    refs: list[dict[str, Any]] = [{"pluginRef": name} for name in filters]
    refs += [{"pluginRef": name, "weight": weight} for name, weight in weights.items()]
    profiles = [{"name": "default", "plugins": refs}]
    config = parse_config({"plugins": plugins, "schedulingProfiles": profiles}, "policy")
    made = build(config, "policy", KnownTypes(), world.random)
    hears = APPROXIMATE not in producers
    return Policy(made.chooser, made.producers, made.following, hears, admission=made.in_time)


def approximate(world: World) -> dict[str, Any]:
    """Return the approximate producer's defaults at the grain of the workload: as many tokens of a
    prompt are looked at, and as many remembered for each engine."""
    defaults, size = ApproxPrefixCacheParameters(), world.block_tokens
    return {
        "autoTune": False,
        "blockSizeTokens": CHARS_A_BLOCK // BYTES_PER_TOKEN,
        "maxPrefixBlocksToMatch": defaults.max_prefix_blocks_to_match * _ENGINE_BLOCK // size,
        "lruCapacityPerServer": defaults.lru_capacity_per_server * _ENGINE_BLOCK // size,
    }


def _llm_d(world: World) -> Policy:
    """llm-d-router's default without a configuration (pkg/epp/config/loader/defaults.go)."""
    return configured(world, _LLM_D, {APPROXIMATE: approximate(world)})


def _llm_d_affinity(world: World) -> Policy:
    """llm-d's recommended default since its pull request 1651 (guides/optimized-baseline/router,
    0a3b0c93): who holds 80 % of the prompt, unless 18 s more of tokens wait there than elsewhere
    (286,720 at the guide's 15,928 tokens a second; here at what a full step computes, which is how
    its calibration measures it), and of these the fewest tokens in flight. What is held is known by
    KV events, as in guides/precise-prefix-cache-routing since pull request 2071."""
    spec = world.engines[0].spec
    full = spec.max_batched_tokens
    most = 18 * full / (spec.step_seconds + full * spec.prefill_seconds)
    source = {"prefixMatchInfoProducerName": PRECISE}
    affinity = {**source, "maxTTFTPenaltyMs": 0, "maxTokensInFlightPenalty": most}
    producers: dict[str, Mapping[str, Any]] = {PRECISE: {}, "inflight-load-producer": source}
    filters = {"prefix-cache-affinity-filter": affinity}
    return configured(world, {"token-load-scorer": 1.0}, producers, filters)


def _lodestar(world: World) -> Policy:
    kinds = np.array([engine.spec.prefill_seconds for engine in world.engines])
    rng = np.random.default_rng(world.random.randrange(2**32))
    return published(Lodestar(world.block_tokens, kinds / kinds.min(), rng))


def _expected_ttft(world: World) -> Policy:
    return configured(world, {"expected-ttft": 1.0})


def _held(world: World) -> Policy:
    limits = {"ttftMs": world.limits.ttft * 1e3, "itlMs": world.limits.itl * 1e3}
    return configured(world, {"expected-ttft": 1.0}, {"goodput-admission": limits})


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


# docs/benchmarks/policies.md says what each does.
POLICIES: dict[str, MakePolicy] = {
    "round-robin": lambda world: Policy(RoundRobin(world.random.randrange(len(world.engines)))),
    "least-request": lambda _: Policy(LeastLoaded()),
    "consistent-hash": lambda _: Policy(ConsistentHash()),
    "cache-aware": lambda world: Policy(CacheAware(world.block_tokens)),
    LLM_D: _llm_d,
    LLM_D_NEW: _llm_d_affinity,
    "dynamo-cost": lambda world: published(DynamoCost(world.block_tokens)),
    "preble-e2": lambda _: published(Preble()),
    "dualmap": lambda world: published(DualMap(world.block_tokens)),
    "lmetric": lambda _: published(LMetric()),
    "lodestar": _lodestar,
    "kv-aware": lambda _: Policy(load_scheduling(KV_AWARE).chooser, sees_blocks=True),
    OURS: _expected_ttft,
    ORACLE: _oracle,
}
# "least-load" as `inferway serve` calls it
_NAMED: dict[str, MakePolicy] = {
    **POLICIES,
    "least-load": POLICIES["least-request"],
    DEAF: _deaf,
    HELD: _held,
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


@dataclass(slots=True)
class Memory:
    """Fills the columns that KV events would fill with what this gateway has sent to each engine,
    as much of it as fits the engine's cache. Ours with it and ours with events differ by what
    events buy."""

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


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows everything: true caches (`candidates.matched_blocks`), true queues, the true latency
    model. It chooses the engine where the request's first token will come soonest, as
    `expected-ttft` means to; it does not look further than that, so another policy may do better by
    doing worse now."""

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
