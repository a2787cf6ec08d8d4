"""Questions to a recording, the fleets and policies that answer them, and their simulations: the
constants of the engines are chosen, then each case is simulated with each seed, in as many
processes as there are cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import inf
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.load import POLICIES as SERVED
from inferway_bench.flags import flag
from inferway_bench.policies.catalog import LEARNED, OURS, policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.gateway import Policy, chosen
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.simulate import FleetSpec, MakePolicy, simulate
from inferway_bench.processes import BenchError
from inferway_bench.simulate.run import Processes
from inferway_bench.whatif.figures import ReplayFigures, error, measured_figures, simulated_figures
from inferway_bench.whatif.learned import Learned, fitted, from_costs
from inferway_bench.whatif.replay import Replay, as_replay, parse_time, part_of, read_recording

AS_RECORDED = "as-recorded"  # each request goes to the engine that it went to
_HALVINGS = 8  # of a cache whose size nobody has told


class WhatIfPlan(msgspec.Struct, frozen=True):
    """The flags of `inferway what-if`."""

    # fmt: off
    directory: Annotated[Path, flag("", metavar="DIR", is_argument=True)]
    policy: Annotated[tuple[str, ...], flag(
        "Choose engines by this policy, of inferway serve --policy or of a peer, instead of the"
        " recorded one.", metavar="NAME",
    )] = ()
    engines: Annotated[tuple[int, ...], flag(
        "Have this number of engines instead of the recorded ones.", ge=1,
    )] = ()
    cache: Annotated[tuple[str, ...], flag(
        "Give each engine a KV cache of this number of blocks, or so many times its own: 2x, 0.5x.",
        metavar="BLOCKS|TIMES",
    )] = ()
    gateways: Annotated[tuple[int, ...], flag(
        "Put this number of gateways before the fleet. Each knows its own requests.", ge=1,
    )] = ()
    prefill_apart: Annotated[bool, flag(
        "Let a prompt be computed on another engine than its answer where that costs less.",
    )] = False
    size: Annotated[str | None, flag(
        "Look for the fewest engines that hold this, as 'p90<1s' or 'p50<200ms,p99<3s'.",
        metavar="SLO",
    )] = None
    since: Annotated[str | None, flag(
        "Count requests from this time on (ISO 8601, UTC, or Unix seconds); those before it only"
        " fill the caches.", name="--from", metavar="TIME",
    )] = None
    until: Annotated[str | None, flag(
        "Leave out requests that came at this time or later.", name="--to", metavar="TIME",
    )] = None
    model: Annotated[str, flag(
        "Replay the requests of this model, by default of the one with the most requests.",
    )] = ""
    recorded_policy: Annotated[str | None, flag(
        "Say by which policy engines were chosen while requests were recorded, if the recording"
        " does not.", metavar="NAME",
    )] = None
    seeds: Annotated[int, flag("Simulate each case with this number of seeds.", ge=2)] = 5
    processes: Annotated[int | None, flag(
        "Simulate in this number of processes at a time, instead of one a core.", ge=1,
    )] = None
    # fmt: on

    @property
    def source(self) -> Selection:
        """The requests to replay. Raises BenchError for a time that cannot be parsed."""
        return Selection(
            self.directory, self.model, _time("--from", self.since), _time("--to", self.until)
        )

    @property
    def num_processes(self) -> int:
        """The number of simulations at a time."""
        return self.processes or os.cpu_count() or 1


class Selection(NamedTuple):
    """The recording, and the requests of it, to replay."""

    directory: Path
    model: str = ""
    since: float | None = None
    until: float | None = None


def _time(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError as e:
        raise BenchError(
            f"{name} {text!r}: expected a time as 2026-11-27T06:00:00, or Unix seconds"
        ) from e


class Variant(msgspec.Struct, frozen=True):
    """A fleet behind a policy, and in words what is other than it was."""

    name: str
    policy: str
    fleet: FleetSpec


class RecordedCase(NamedTuple):
    """The recorded fleet, as it is simulated, behind the recorded policy."""

    case: Variant
    is_known: bool  # else the policy is not ours, and its choices are replayed as they were


def base_case(policy: str, fleet: FleetSpec) -> RecordedCase:
    """Return the recorded case; a policy that has no simulation is replayed choice by choice."""
    try:
        policy_named(policy)
    except BenchError:
        return RecordedCase(
            Variant(f"replayed as it went ({policy})", AS_RECORDED, fleet), is_known=False
        )
    return RecordedCase(Variant(f"replayed ({policy})", policy, fleet), is_known=True)


def changed_cases(plan: WhatIfPlan, base: RecordedCase, block_tokens: int) -> list[Variant]:
    """Return every combination of what is changed; if nothing is, the policies of `inferway
    serve`. Raises BenchError for what cannot be read."""
    policies: tuple[str, ...] = plan.policy
    has_other = bool(plan.engines or plan.cache or plan.gateways or plan.prefill_apart or plan.size)
    own = base.case.policy if base.is_known else OURS
    if not policies:
        policies = (own,) if has_other else tuple(p for p in SERVED if p != base.case.policy)
    return list(_combined(plan, base.case, policies, block_tokens))


def _combined(
    plan: WhatIfPlan, base: Variant, policies: tuple[str, ...], block_tokens: int
) -> Iterator[Variant]:
    fleet = base.fleet
    for policy, engines, cache, gateways in product(
        policies,
        plan.engines or (fleet.num_engines,),
        plan.cache or ("1x",),
        plan.gateways or (fleet.num_gateways,),
    ):
        name = policy
        if plan.prefill_apart:
            name = _apart(policy)
        policy_named(name)
        tokens = cache_tokens(cache, fleet.engine.cache_tokens, block_tokens)
        words = [policy] if policy != base.policy else []
        if engines != fleet.num_engines:
            words.append(f"{engines} engine{'s' * (engines > 1)} instead of {fleet.num_engines}")
        if tokens != fleet.engine.cache_tokens:
            words.append(f"caches of {cache if cache.endswith('x') else cache + ' blocks'}")
        if gateways != fleet.num_gateways:
            words.append(f"{gateways} gateways instead of {fleet.num_gateways}")
        if plan.prefill_apart:
            words.append("prefill apart")
        engine = msgspec.structs.replace(fleet.engine, cache_tokens=tokens)
        changed = msgspec.structs.replace(
            fleet, num_engines=engines, num_gateways=gateways, engine=engine
        )
        if words:
            yield Variant(", ".join(words), name, changed)


def _apart(policy: str) -> str:
    if policy != OURS:
        raise BenchError(
            f"prefill apart: the policy {policy} does not decide that; fix: the policy {OURS}"
        )
    return LEARNED


def cache_tokens(text: str, own: int, block_tokens: int) -> int:
    """Return the tokens of a cache that is said in blocks, or as so many times `own`. Raises
    BenchError."""
    try:
        tokens = float(text[:-1]) * own if text.endswith("x") else int(text) * block_tokens
        if not block_tokens <= tokens < inf:
            raise ValueError(text)
    except ValueError as e:
        raise BenchError(
            f"--cache {text!r}: expected a number of blocks, or a number and x, as 2x"
        ) from e
    return int(tokens) // block_tokens * block_tokens


class _AsRecorded(NamedTuple):
    """Chooses for each request, by its number, the engine that it went to."""

    rows: list[int]

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        return chosen(candidates, self.rows[int(request.request_id)])


def maker(policy: str, replay: Replay) -> MakePolicy:
    """Return how the policy is made. Raises BenchError for one that is not known."""
    if policy != AS_RECORDED:
        return policy_named(policy)
    rows = replay.measured.row.tolist()
    return lambda _: Policy(_AsRecorded(rows))


class ReplayTask(msgspec.Struct, frozen=True):
    """A simulation of one case with one seed."""

    source: Selection
    case: Variant
    seed: int


@lru_cache(maxsize=2)
def load(source: Selection) -> Replay:
    """Return the requests that are meant; a process keeps those that it has read last. Raises
    BenchError when they are too few, or nothing can be read."""
    recording = read_recording(source.directory)
    return as_replay(part_of(recording, source.model, source.since, source.until))


def perform(task: ReplayTask) -> ReplayFigures:
    """Simulate a task in a process of the pool."""
    return simulated(load(task.source), task.case, task.seed)


def simulated(replay: Replay, case: Variant, seed: int) -> ReplayFigures:
    """Simulate a case, and return its figures. Raises BenchError."""
    work = replay.workload
    outcome = simulate(work, work.own_rate, case.fleet, maker(case.policy, replay), seed)
    return simulated_figures(replay, outcome, case.fleet.num_engines)


def of_seeds(
    processes: Processes, source: Selection, cases: Sequence[Variant], seeds: int, what: str
) -> list[list[ReplayFigures]]:
    """Return the figures of each case with each seed."""
    tasks = [ReplayTask(source, case, seed) for seed in range(1, seeds + 1) for case in cases]
    found = processes.map(perform, tasks, what)
    return [found[number :: len(cases)] for number in range(len(cases))]


class RecordedFleet(msgspec.Struct, frozen=True):
    """The recorded fleet as it is simulated, and in words how its constants were found."""

    spec: FleetSpec
    how: str
    notes: Sequence[str] = ()


def recorded_fleet(replay: Replay) -> RecordedFleet:
    """Return the fleet with the constants that tell the recorded times best. Raises BenchError when
    the recording says too little of them."""
    part = replay.part
    sizes = {facts.cache_blocks for facts in part.engines.values()} - {None}
    least = min((size for size in sizes if size), default=None)
    most = _all_blocks(replay.workload)
    tokens = (least or most) * part.block_size
    like = EngineSpec(cache_tokens=tokens)
    notes = []
    found, why = _constants(replay, like)
    fleets = [_fleet(replay, each) for each in found]
    best = min(range(len(fleets)), key=lambda at: _off(replay, fleets[at]))
    how, spec = found[best].how, fleets[best]
    if why and not found[1:]:
        notes.append(why)
    if len(sizes) > 1:
        notes.append(f"engines have caches of different sizes; all get the least, {least:,} blocks")
    if least is None:
        spec, said = _with_cache(replay, spec, most * part.block_size)
        notes.append(said)
    return RecordedFleet(spec, how, notes)


def _constants(replay: Replay, like: EngineSpec) -> tuple[list[Learned], str]:
    """What can be said of the engines, in each way that says something; else why it does not."""
    learned = from_costs(replay.part.engines, like)
    try:
        own = fitted(replay, like)
    except BenchError as e:
        if learned is None:
            raise
        return [learned], str(e)
    if learned is None:
        return own, ""
    scattered = msgspec.structs.replace(learned.engine, scatter=own[0].engine.scatter)
    return [*own, learned._replace(engine=scattered)], ""


def _fleet(replay: Replay, learned: Learned) -> FleetSpec:
    number = len(replay.names)
    return FleetSpec(number, num_slow=0, engine=learned.engine, factors=learned.factors)


def _as_recorded(fleet: FleetSpec) -> Variant:
    return Variant(AS_RECORDED, AS_RECORDED, fleet)


def _off(replay: Replay, fleet: FleetSpec) -> float:
    """How far the times of a simulation are off, in %."""
    told, measured = simulated(replay, _as_recorded(fleet), seed=1), measured_figures(replay)
    names = ("ttft_p50", "ttft_p90")
    return sum(abs(error(getattr(told, n), getattr(measured, n), n)) for n in names)


def _all_blocks(workload: Workload) -> int:
    """A cache of so many blocks never evicts one."""
    size = workload.block_tokens
    return sum(-(-(r.prompt_tokens + r.output_tokens) // size) for r in workload.requests) + 1


def _with_cache(replay: Replay, fleet: FleetSpec, most: int) -> tuple[FleetSpec, str]:
    """The fleet with caches that reuse as much as was reused, and in words how large they are."""
    if not replay.measured.has_usage:
        return fleet, "no engine has told the size of its cache; caches that evict nothing are used"
    shared, size = measured_figures(replay).cached, replay.workload.block_tokens
    longest = max(r.prompt_tokens + r.output_tokens for r in replay.workload.requests) + size
    best: tuple[float, int] = (float("inf"), most)
    for halving in range(_HALVINGS * 2):
        tokens = max(int(most / 2 ** (halving / 2)), longest)
        told = simulated(replay, _as_recorded(_with_tokens(fleet, tokens)), seed=1)
        best = min(best, (abs(told.cached - shared), -tokens))
        if tokens == longest or told.cached < shared - 10:
            break
    tokens = abs(best[1])
    said = (
        f"no engine has told the size of its cache; with {tokens // size:,} blocks each reuses as "
        "much as was reused"
    )
    return _with_tokens(fleet, tokens), said


def _with_tokens(fleet: FleetSpec, tokens: int) -> FleetSpec:
    engine = msgspec.structs.replace(fleet.engine, cache_tokens=tokens)
    return msgspec.structs.replace(fleet, engine=engine)
