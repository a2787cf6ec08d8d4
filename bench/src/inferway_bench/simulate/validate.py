"""`inferway bench validate`: chats are sent through real routers to engines that run, and simulated
with the same policies: what differs is what the simulation gets wrong.

Constants of real engines are fitted to what is not judged: requests to an engine alone, and chats
of other seeds through round-robin, before each seed and after the last.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from inferway.prompts.prepare import prepare_smollm2
from inferway_bench.engine_prompts import EnginePrompts
from inferway_bench.loading.workload import Session
from inferway_bench.machine import this_machine
from inferway_bench.peers.fleets import MODEL, Fleet, real_engines, started
from inferway_bench.peers.plan import RealEngines, SimulatedEngines
from inferway_bench.peers.standing import standing
from inferway_bench.peers.workload import ChatSpec, chats
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.measured import command
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.progress import OnCountedStep
from inferway_bench.routers import Router
from inferway_bench.simulate.beside import fit_beside
from inferway_bench.simulate.compared import Sent, compared
from inferway_bench.simulate.constants import measure
from inferway_bench.simulate.division import division
from inferway_bench.simulate.doubling import simulated_doubling_rate
from inferway_bench.simulate.fitting import Measured, fit
from inferway_bench.simulate.sent import as_workload
from inferway_bench.simulate.validated import Plan, ValidateRun

_FITTED_SEED = 3_000  # of chats that are not judged, and above
_REAL_BATCHED_TOKENS = 2_048  # of vLLM's API server on the CPU
_ROUND_ROBIN, _BY_SESSION = "round-robin", "consistent-hash"  # policies

# 2,000 requests; eight engines hold half of what the chats have said when they end. They are fast:
# only what is cached is judged, and a policy that piles requests up must not take hours.
PEERS = Plan(
    SimulatedEngines(blocks=768, prefill_us_per_token=60.0, inter_token_ms=5.0),
    ChatSpec(sessions=200, turns=10, systems=8, apart=30),
    rate=25.0,
)
# As fast as this machine can: see `_Tour.find_rate`.
REAL = Plan(RealEngines(), ChatSpec(), rate=None, seeds=(1, 2, 3, 4), warm_up_requests=20)
# Of the rate at which round-robin's mean TTFT doubles: the lowest load of `bench peers`. Near that
# rate engines that are 5 % slower answer 15 % later, and the machine's minutes would be judged: at
# 0.75 five runs of round-robin, simulated with the same constants, were off by -25 to +15 %.
_LOAD = 0.5
_BESIDE = 1.2  # as long as it is not known
_BISECTIONS = 4


def run_validate(
    plan: Plan,
    routers: Sequence[tuple[Router, str]],
    round_robin: Router,
    vllm: Path | None,
    on_step: OnCountedStep,
) -> ValidateRun:
    """`routers`: each with the policy that simulates it; constants are fitted to `round_robin`.
    Raises BenchError."""
    machine = this_machine()
    prompts = EnginePrompts(str(prepare_smollm2()))
    try:
        with (
            TemporaryDirectory(prefix="inferway-validate-") as name,
            started(plan.engines, vllm, Path(name), on_step) as fleet,
        ):
            tour = _Tour(plan, fleet, prompts, Path(name), on_step)
            if plan.rate is None:
                plan = tour.plan = msgspec.structs.replace(plan, rate=tour.find_rate())
            tour.measure(routers, round_robin)
    finally:
        prompts.close()
    on_step("simulating the same")
    spec = tour.simulated_fleet()
    return ValidateRun(
        machine=machine,
        command=command(),
        plan=plan,
        engine=spec.engine,
        is_fitted=isinstance(plan.engines, RealEngines),
        compared=[compared(one, spec) for one in tour.sent],
        fitted_to=tuple(compared(one, spec) for one in tour.fitted_to),
        load_after=round(os.getloadavg()[0], 2),
    )


@dataclass(slots=True)
class _Tour:
    """Of all routers."""

    plan: Plan
    fleet: Fleet
    prompts: EnginePrompts
    directory: Path
    on_step: OnCountedStep
    sent: list[Sent] = field(default_factory=list)  # what is judged
    measured: list[Measured] = field(default_factory=list)  # and what constants are fitted to
    fitted_to: list[Sent] = field(default_factory=list)

    def measure(self, routers: Sequence[tuple[Router, str]], round_robin: Router) -> None:
        """All seeds. The machine does not stay as fast as it was: each router meets it early and
        late, and the constants are of the whole time."""
        for seed in self.plan.seeds:
            self._measure_engines(round_robin)
            self.sent += [self._send(router, policy, seed) for router, policy in routers]
        self._measure_engines(round_robin)

    def find_rate(self) -> float:
        """What an engine alone takes says where round-robin's mean TTFT doubles: _LOAD of that."""
        self._measure_alone()
        fleet = self._fitted().with_beside(_BESIDE)
        workload = self._workload(chats(self.plan.chats, _FITTED_SEED, "search", 1.0))
        return round(_LOAD * simulated_doubling_rate([workload], fleet, _BISECTIONS), 3)

    def simulated_fleet(self) -> FleetSpec:
        """With constants as given to simulated engines, or fitted."""
        engines = self.plan.engines
        if isinstance(engines, SimulatedEngines):
            return FleetSpec(engines.engines, num_slow=0, engine=engine_like(engines))
        fleet = self._fitted()
        return fleet.with_beside(fit_beside(self.fitted_to, fleet))

    def _fitted(self) -> FleetSpec:
        """To what an engine alone took."""
        engines = self.plan.engines
        like = EngineSpec(
            max_batched_tokens=_REAL_BATCHED_TOKENS,
            cache_tokens=(engines.blocks - 1) * engines.block_size,  # one of vLLM's stays empty
        )
        return FleetSpec(engines.engines, num_slow=0, engine=fit(self.measured, like))

    def _measure_engines(self, round_robin: Router) -> None:
        if isinstance(self.plan.engines, RealEngines):
            if len(self.measured) == len(self.fitted_to):  # else the rate has just been looked for
                self._measure_alone()
            seed = _FITTED_SEED + len(self.fitted_to)
            self.fitted_to.append(self._send(round_robin, _ROUND_ROBIN, seed))

    def _measure_alone(self) -> None:
        self.on_step("measuring an engine")
        seed = len(self.measured)
        self.measured.append(measure(self.fleet.engines[0].url, MODEL, seed))

    def _workload(self, sessions: Sequence[Session]) -> Workload:
        return as_workload(sessions, self.prompts, self.plan.engines.block_size)

    def _send(self, router: Router, policy: str, seed: int) -> Sent:
        plan, fleet, rows = self.plan, self.fleet, None
        assert plan.rate is not None
        place = self.directory / f"{router.label}-{seed}".replace(" ", "-")
        with standing(router, fleet, place) as one:
            self.on_step(f"warming up {router.label}")
            one.warm_up(plan.chats, seed, plan.rate, plan.warm_up_requests)
            sessions = chats(plan.chats, seed, f"{policy}-{seed}", plan.rate)
            # of simulated engines the policy itself is judged, of real ones the engines' times
            if policy == _BY_SESSION and isinstance(plan.engines, RealEngines):
                rows = division(one.place.url, fleet, sessions)
            fleet.reset()
            self.on_step(f"{router.label}, seed {seed}: {plan.chats.requests:,} requests")
            samples = one.carry(sessions).driven.samples
        return Sent(router.label, policy, seed, samples, self._workload(sessions), rows)


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


def plan_of(real: bool, layers: int | None, rate: float | None, seeds: tuple[int, ...]) -> Plan:
    plan = msgspec.structs.replace(REAL, engines=real_engines(layers)) if real else PEERS
    return msgspec.structs.replace(plan, rate=rate or plan.rate, seeds=seeds or plan.seeds)
