"""`inferway bench validate`: chats are sent through real routers to engines that run, and simulated
with the same policies: what differs is what the simulation gets wrong.

Constants of real engines are fitted to what is not judged: requests to an engine alone, and chats
of other seeds through round-robin, before each seed and after the last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec

from inferway_bench.engine_prompts import EnginePrompts
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.loading.workload import Session
from inferway_bench.peers.fleets import MODEL, Fleet, real_engines, started
from inferway_bench.peers.measuring import standing
from inferway_bench.peers.plan import (
    LayersFlag,
    RealEngines,
    Scenario,
    SimulatedEngines,
    VllmFlag,
)
from inferway_bench.peers.workload import ChatSpec, chats
from inferway_bench.plotting import Chart, Plot
from inferway_bench.policies.catalog import OURS
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.routers import OnlyFlag, Router, all_routers, chosen
from inferway_bench.rows import Findings, Goal, Row, Run, Value
from inferway_bench.simulate.compared import DRAWS, Sent, as_workload, compared
from inferway_bench.simulate.constants import division, measure_engine
from inferway_bench.simulate.fitting import Measured, fit, fit_beside
from inferway_bench.simulate.run import round_robins_rate
from inferway_sim.prepare import prepare_smollm2

TTFT_PERCENT, CACHED_POINTS = 15.0, 2.0  # how far off a simulation may be
_FITTED_SEED = 3_000  # of chats that are not judged, and above
_REAL_BATCHED_TOKENS = 2_048  # of vLLM's API server on the CPU
# Of the rate at which round-robin's mean TTFT doubles: the lowest load of `bench peers`. Near that
# rate engines that are 5 % slower answer 15 % later, and the machine's minutes would be judged: at
# 0.75 five runs of round-robin, simulated with the same constants, were off by -25 to +15 %.
_LOAD = 0.5
_BESIDE = 1.2  # as long as it is not known


class ValidatePlan(msgspec.Struct, frozen=True):
    """The flags of `inferway bench validate`."""

    # fmt: off
    real: Annotated[bool, flag(
        "Compare with real vLLM on the CPU, with constants that are fitted to it.",
    )] = False
    vllm: VllmFlag = None
    layers: LayersFlag = None
    only: OnlyFlag = ()
    rate: Annotated[float | None, flag("Send this number of requests a second.", gt=0)] = None
    seeds: Annotated[int | None, flag(
        "Send chats of this number of seeds, by default 1, or 4 with --real.", ge=1,
    )] = None
    # fmt: on


# 2,000 requests; eight engines hold half of what the chats have said when they end. They are fast:
# only what is cached is judged, and a policy that piles requests up must not take hours.
_SIMULATED = Scenario(
    SimulatedEngines(blocks=768, prefill_us_per_token=60.0, inter_token_ms=5.0),
    ChatSpec(sessions=200, turns=10, systems=8, apart=30),
    warm_up_requests=40,
    bisections=4,
)
_SIMULATED_RATE = 25.0  # requests a second
_REAL = Scenario(RealEngines(), ChatSpec(), warm_up_requests=20, bisections=4)


def measure(plan: ValidatePlan, on_step: OnStep) -> Findings:
    """Send the chats and simulate them. Raises BenchError when no router is left, a router or an
    engine does not start, or a request fails."""
    scenario, rate, seeds = _SIMULATED, plan.rate or _SIMULATED_RATE, plan.seeds or 1
    by_text = () if plan.real else ("cache_aware",)
    if plan.real:
        scenario = msgspec.structs.replace(_REAL, engines=real_engines(plan.layers))
        rate, seeds = plan.rate or 0.0, plan.seeds or 4
    vllm = ("round_robin", "consistent_hash", *by_text)
    ours, _, round_robin, *others = all_routers(vllm, by_text, True, on_step)
    prompts = EnginePrompts(str(prepare_smollm2()))
    try:
        with (
            TemporaryDirectory(prefix="inferway-validate-") as name,
            started(scenario.engines, plan.vllm, Path(name), on_step) as fleet,
        ):
            tour = Tour(scenario, fleet, prompts, Path(name), on_step)
            routers = chosen([ours, round_robin, *others], plan.only)
            tour.measure(routers, round_robin, rate, seeds)
    finally:
        prompts.close()
    on_step("simulating the same")
    return findings(tour, os.getloadavg()[0])


@dataclass(slots=True)
class Tour:
    """One fleet, and what all routers have carried to it. `measure` fills the lists."""

    scenario: Scenario
    fleet: Fleet
    prompts: EnginePrompts
    directory: Path
    on_step: OnStep
    sent: list[Sent] = field(default_factory=list)  # what is judged
    measured: list[Measured] = field(default_factory=list)  # and what constants are fitted to
    fitted_to: list[Sent] = field(default_factory=list)

    def measure(
        self, routers: Sequence[Router], round_robin: Router, rate: float, seeds: int
    ) -> None:
        """Send the chats of all seeds through `routers`, at half of the rate that round-robin can
        carry if `rate` is 0. The machine does not stay as fast as it was: each router meets it
        early and late, and the constants are of the whole time."""
        rate = rate or self._find_rate()
        for seed in range(1, seeds + 1):
            self._measure_engines(round_robin, rate)
            self.sent += [self._send(router, seed, rate) for router in routers]
        self._measure_engines(round_robin, rate)

    def _find_rate(self) -> float:
        """What an engine alone takes says where round-robin's mean TTFT doubles: _LOAD of that."""
        self._measure_alone()
        fleet = self._fitted().with_beside(_BESIDE)
        workload = self._workload(chats(self.scenario.chats, _FITTED_SEED, "search", 1.0))
        rate = round_robins_rate([workload], fleet, self.scenario.bisections)[1]
        return round(_LOAD * rate, 3)

    def simulated_fleet(self) -> FleetSpec:
        """Return the fleet with its constants: as given to simulated engines, or fitted."""
        engines = self.scenario.engines
        if isinstance(engines, SimulatedEngines):
            return FleetSpec(engines.engines, num_slow=0, engine=engine_like(engines))
        fleet = self._fitted()

        def simulated(beside: float) -> float:
            slowed = fleet.with_beside(beside)
            return fmean(one.simulated_ttft(slowed) for one in self.fitted_to)

        waited = fmean(one.ttft for one in self.fitted_to)
        return fleet.with_beside(fit_beside(waited, simulated))

    def _fitted(self) -> FleetSpec:
        """To what an engine alone took."""
        engines = self.scenario.engines
        like = EngineSpec(
            max_batched_tokens=_REAL_BATCHED_TOKENS,
            cache_tokens=(engines.blocks - 1) * engines.block_size,  # one of vLLM's stays empty
        )
        return FleetSpec(engines.engines, num_slow=0, engine=fit(self.measured, like))

    def _measure_engines(self, round_robin: Router, rate: float) -> None:
        if isinstance(self.scenario.engines, RealEngines):
            if len(self.measured) == len(self.fitted_to):  # else the rate has just been looked for
                self._measure_alone()
            seed = _FITTED_SEED + len(self.fitted_to)
            self.fitted_to.append(self._send(round_robin, seed, rate))

    def _measure_alone(self) -> None:
        self.on_step("measuring an engine")
        seed = len(self.measured)
        self.measured.append(measure_engine(self.fleet.engines[0].url, MODEL, seed))

    def _workload(self, sessions: Sequence[Session]) -> Workload:
        return as_workload(sessions, self.prompts, self.scenario.engines.block_size)

    def _send(self, router: Router, seed: int, rate: float) -> Sent:
        scenario, fleet, rows = self.scenario, self.fleet, None
        # the last word of a peer's name is its policy
        policy = OURS if router.is_ours else router.label.split()[-1].replace("_", "-")
        place = self.directory / f"{router.label}-{seed}".replace(" ", "-")
        with standing(router, fleet, place) as one:
            self.on_step(f"warming up {router.label}")
            one.warm_up(scenario.chats, seed, rate, scenario.warm_up_requests)
            sessions = chats(scenario.chats, seed, f"{policy}-{seed}", rate)
            # of simulated engines the policy itself is judged, of real ones the engines' times
            if policy == "consistent-hash" and isinstance(scenario.engines, RealEngines):
                rows = division(one.place.url, fleet, sessions)
            fleet.reset()
            self.on_step(f"{router.label}, seed {seed}: {scenario.chats.requests:,} requests")
            samples = one.carry(sessions).samples
        return Sent(router.label, policy, seed, samples, self._workload(sessions), rows)


def engine_like(engines: SimulatedEngines) -> EngineSpec:
    """Return in virtual time what `inferway simulate` does with these flags."""
    step = engines.inter_token_ms / 1e3
    slower = (engines.time_factor_under_load - 1) / max(1, engines.max_num_seqs - 1)
    return EngineSpec(
        step_seconds=step * (1 - slower),
        decode_seconds=step * slower,
        prefill_seconds=engines.prefill_us_per_token / 1e6,
        max_num_seqs=engines.max_num_seqs,
        cache_tokens=engines.blocks * engines.block_size,
    )


def findings(tour: Tour, load_after: float) -> Findings:
    """Return what was measured beside what is simulated."""
    fleet = tour.simulated_fleet()
    by_router: dict[tuple[str, str], list[dict[str, float]]] = {}
    for one in tour.sent:
        by_router.setdefault((one.router, one.policy), []).append(compared(one, fleet))
    return Findings(
        rows=[router_row(*key, seeds) for key, seeds in by_router.items()],
        about=list(_about(tour, fleet, load_after)),
        facts={"engines": tour.scenario.engines.about, **msgspec.structs.asdict(fleet.engine)},
        seeds=sorted({one.seed for one in tour.sent}),
    )


def router_row(router: str, policy: str, seeds: Sequence[dict[str, float]]) -> Row:
    """Return the figures of a router's seeds, and how far off the simulation of all is."""
    lists = {name: [one[name] for one in seeds] for name in seeds[0]}
    means = {name: fmean(values) for name, values in lists.items()}
    errors: dict[str, Value] = {
        "requests": sum(lists["requests"]),
        "ttft_off": [abs(one["simulated_ttft"] / one["ttft"] - 1) * 100 for one in seeds],
        "cached_off": [abs(one["simulated_cached"] - one["cached"]) for one in seeds],
        "ttft_error": (means["simulated_ttft"] / means["ttft"] - 1) * 100,
        "cached_error": means["simulated_cached"] - means["cached"],
    }
    return Row("routers", {"router": router, "policy": policy}, {**lists, **errors})


def _about(tour: Tour, fleet: FleetSpec, load_after: float) -> Iterator[str]:
    spec, engine = tour.scenario.chats, fleet.engine
    fitted = "fitted to requests without a router" if tour.measured else "as given to the engines"
    yield f"- {tour.scenario.engines.about}"
    yield (
        f"- {spec.requests:,} requests of {spec.sessions} chats that share {spec.systems} system "
        f"prompts; load average {load_after:.2f} after the run"
    )
    yield (
        f"- constants of the simulation, {fitted}: {engine.request_seconds * 1e3:.1f} ms a "
        f"request; a step takes {engine.step_about}"
    )
    if engine.scatter:
        yield f"- each seed is simulated {DRAWS} times with step times drawn anew; the mean counts"
    if tour.fitted_to:
        firsts = ", ".join(
            f"{one.simulated_ttft(fleet) * 1e3:,.0f} / {one.ttft * 1e3:,.0f}"
            for one in tour.fitted_to
        )
        yield (
            f"- how much engines slow each other is fitted to chats of {len(tour.fitted_to)} other "
            f"seeds through {tour.fitted_to[0].router}, sent between the seeds that are compared; "
            f"mean TTFT in ms, simulated / measured: {firsts}"
        )


def _goals(run: Run) -> list[Goal]:
    goals = []
    for row in run.select("routers"):
        errors = [
            ("mean TTFT", row.median("ttft_error"), "%", TTFT_PERCENT),
            ("cached share", row.median("cached_error"), " points", CACHED_POINTS),
        ]
        for what, error, unit, most in errors if run.plan["real"] else errors[1:]:
            said = f"{row.keys['router']}: error of the simulated {what}"
            is_met = abs(error) <= most
            goals.append(Goal(said, f"within {most:g}{unit}", f"{error:+.1f}{unit}", is_met))
    return goals


def _mean(name: str, head: str, form: str) -> Column:
    return Column(name, head, form, "mean alone")


_ROUTERS = Table(
    "routers",
    "The same chats measured and simulated in virtual time",
    ("router", "policy"),
    (
        _mean("requests", "", "{:,.0f}"), _mean("rate", "requests/s", "{:,.1f}"),
        _mean("ttft", "TTFT, ms", "{:,.0f}"), _mean("simulated_ttft", "simulated", "{:,.0f}"),
        _mean("ttft_error", "error", "{:+.1f}%"),
        replace(_mean("ttft_off", "of a seed", "{:.1f}%"), better="lower", unit="%"),
        _mean("itl", "ITL, ms", "{:,.1f}"), _mean("simulated_itl", "simulated", "{:,.1f}"),
        _mean("cached", "cached", "{:.1f}%"), _mean("simulated_cached", "simulated", "{:.1f}%"),
        _mean("cached_error", "error, points", "{:+.1f}"),
        replace(_mean("cached_off", "of a seed", "{:.1f}"), better="lower", unit="points"),
    ),
)  # fmt: skip
_CACHED = Plot(
    "routers", ("simulated_cached",), x="cached", by="router", mean=True,
    x_label="measured: prompt tokens from a cache, %",
    y_label="simulated: prompt tokens from a cache, %",
)  # fmt: skip
_TTFT = replace(
    _CACHED, y=("simulated_ttft",), x="ttft", x_label="measured: mean TTFT, ms",
    y_label="simulated: mean TTFT, ms",
)  # fmt: skip

VALIDATE = Benchmark(
    "validate",
    "Say whether the simulation is right: the same chats over HTTP and simulated, through real "
    "routers before engines that speak HTTP, with --real before vLLM.",
    ValidatePlan,
    measure,
    (_ROUTERS,),
    Chart("{engines}", (_CACHED, _TTFT)),
    goals=_goals,
    question="how close simulated policies come to the cached share of the real routers",
    takes="8 minutes",
    audience="user",
    run_name=lambda plan: "validate --real" if plan.real else "validate",
)
VALIDATE_REAL = replace(
    VALIDATE,
    name="validate --real",
    question="how close a simulation with fitted constants comes to real engines",
    takes="27 minutes",
)
validate = VALIDATE.command()
