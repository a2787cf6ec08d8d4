"""`inferway bench validate`: chats are sent through real routers to engines that run, and simulated
with the same policies: what differs is what the simulation gets wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from inferway.bench.engine_prompts import EnginePrompts
from inferway.bench.loading.samples import Sample
from inferway.bench.loading.workload import Session
from inferway.bench.machine import this_machine
from inferway.bench.peers.fleets import MODEL, Fleet, started
from inferway.bench.peers.plan import RealEngines, SimulatedEngines
from inferway.bench.peers.standing import standing
from inferway.bench.peers.workload import ChatSpec, chats
from inferway.bench.policies.engine import EngineSpec
from inferway.bench.policies.measured import command
from inferway.bench.policies.simulate import FleetSpec
from inferway.bench.progress import OnCountedStep
from inferway.bench.routers import Router
from inferway.bench.simulate.compared import compared
from inferway.bench.simulate.constants import measure
from inferway.bench.simulate.fitting import Measured, fit
from inferway.bench.simulate.sent import as_workload
from inferway.bench.simulate.validated import Plan, ValidateRun
from inferway.prompts.prepare import prepare_smollm2

_WARM_UP_SEED = 2_000
_REAL_BATCHED_TOKENS = 2_048  # of vLLM's API server on the CPU

# 2,000 requests; eight engines hold half of what the chats have said when they end. They are fast:
# only what is cached is judged, and a policy that piles requests up must not take hours.
PEERS = Plan(
    SimulatedEngines(blocks=768, prefill_us_per_token=60.0, inter_token_ms=5.0),
    ChatSpec(sessions=200, turns=10, systems=8, apart=30),
    rate=25.0,
)
# About 0.9 of the rate at which round-robin's mean TTFT doubles, as much as peers are judged at.
# Beyond it engines that are 5 % slower answer 15 % later: the constants would be judged.
REAL = Plan(RealEngines(), ChatSpec(), rate=2.0, seeds=(1, 2), warm_up_requests=20)


@dataclass(frozen=True, slots=True)
class Sent:
    """One seed's chats, answered through one router."""

    router: str
    policy: str  # that simulates it
    seed: int
    sessions: Sequence[Session]
    samples: Sequence[Sample]


def run_validate(
    plan: Plan, routers: Sequence[tuple[Router, str]], vllm: Path | None, on_step: OnCountedStep
) -> ValidateRun:
    """`routers`: each with the policy that simulates it. Raises BenchError."""
    machine = this_machine()
    prompts = EnginePrompts(str(prepare_smollm2()))
    try:
        with (
            TemporaryDirectory(prefix="inferway-validate-") as name,
            started(plan.engines, vllm, Path(name), on_step) as fleet,
        ):
            sent, measured = _carried(plan, fleet, routers, Path(name), on_step)
        engine = _engine(plan.engines, measured)
        spec = FleetSpec(num_engines=plan.engines.engines, num_slow=0, engine=engine)
        found = []
        for one in sent:
            on_step(f"simulating {one.policy}, seed {one.seed}")
            workload = as_workload(one.sessions, prompts, plan.engines.block_size)
            found.append(compared(one.router, one.policy, one.seed, one.samples, workload, spec))
    finally:
        prompts.close()
    return ValidateRun(
        machine=machine,
        command=command(),
        plan=plan,
        engine=engine,
        is_fitted=isinstance(plan.engines, RealEngines),
        compared=found,
        load_after=round(os.getloadavg()[0], 2),
    )


def _carried(
    plan: Plan,
    fleet: Fleet,
    routers: Sequence[tuple[Router, str]],
    directory: Path,
    on_step: OnCountedStep,
) -> tuple[list[Sent], list[Measured]]:
    """What was sent through each router, and what real engines took before and after each: the
    machine does not stay as fast as it was."""
    sent: list[Sent] = []
    measured: list[Measured] = []

    def measure_engines() -> None:
        if isinstance(plan.engines, RealEngines):
            on_step("measuring the engines")
            one, other = (engine.url for engine in fleet.engines[:2])
            measured.append(measure(one, other, MODEL, seed=len(measured)))

    measure_engines()
    for router, policy in routers:
        place = directory / router.label.replace(" ", "-")
        sent += _sent(plan, fleet, router, policy, place, on_step)
        measure_engines()
    return sent, measured


def _engine(engines: SimulatedEngines | RealEngines, measured: Sequence[Measured]) -> EngineSpec:
    """Constants of the engines: as given to simulated ones, or fitted."""
    if isinstance(engines, SimulatedEngines):
        return engine_like(engines)
    like = EngineSpec(
        max_batched_tokens=_REAL_BATCHED_TOKENS,
        cache_tokens=(engines.blocks - 1) * engines.block_size,  # one of vLLM's stays empty
    )
    return fit(measured, like)


def engine_like(engines: SimulatedEngines) -> EngineSpec:
    """In virtual time what `inferway simulate` does with these flags."""
    step = engines.inter_token_ms / 1e3
    slower = (engines.time_factor_under_load - 1) / max(1, engines.max_num_seqs - 1)
    return EngineSpec(
        step_seconds=step * (1 - slower),
        decode_seconds=step * slower,
        prefill_seconds=engines.prefill_us_per_token / 1e6,
        max_num_seqs=engines.max_num_seqs,
        cache_tokens=engines.blocks * engines.block_size,
    )


def _sent(
    plan: Plan, fleet: Fleet, router: Router, policy: str, place: Path, on_step: OnCountedStep
) -> Iterator[Sent]:
    for seed in plan.seeds:
        with standing(router, fleet, place / str(seed)) as one:
            on_step(f"warming up {router.label}")
            tag, most = f"warm-{seed}", plan.warm_up_requests
            one.carry(chats(plan.chats, _WARM_UP_SEED + seed, tag, plan.rate, most))
            fleet.reset()
            on_step(f"{router.label}, seed {seed}: {plan.chats.requests:,} requests")
            sessions = _named(chats(plan.chats, seed, f"{policy}-{seed}", plan.rate))
            samples = one.carry(sessions).driven.samples
        yield Sent(router.label, policy, seed, sessions, samples)


def _named(sessions: Sequence[Session]) -> list[Session]:
    """With the session's name where vllm-router 0.1.17 looks for it; without it, its
    consistent_hash sends all to one engine."""
    named = []
    for session in sessions:
        name = {"session_params": {"session_id": f"session-{session.number}"}}
        turns = [replace(turn, fields={**turn.fields, **name}) for turn in session.turns]
        named.append(replace(session, turns=turns))
    return named


def with_rate(plan: Plan, rate: float | None, seeds: tuple[int, ...]) -> Plan:
    return msgspec.structs.replace(plan, rate=rate or plan.rate, seeds=seeds or plan.seeds)
