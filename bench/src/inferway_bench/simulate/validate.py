"""`inferway bench validate`: chats are sent through real routers to engines that speak HTTP, and
simulated with the same policies: the same prompts in the same blocks at the same times. What
differs is what the simulation gets wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import numpy as np

from inferway.kv.blocks.keys import BlockHasher
from inferway_bench.conversations import EnginePrompts
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.loading.answers import Sample
from inferway_bench.loading.generated import Conversation, Session
from inferway_bench.peers.fleets import Fleet, simulated_fleet, standing
from inferway_bench.peers.plan import ChatSpec, Scenario, SimulatedEngines, chats
from inferway_bench.plotting import Chart, Plot
from inferway_bench.policies.catalog import OURS, policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.processes import BenchError, OnStep
from inferway_bench.routers import OnlyFlag, Router, all_routers, chosen
from inferway_bench.rows import Column, Findings, Row, Table
from inferway_sim.prepare import prepare_smollm2


class ValidatePlan(msgspec.Struct, frozen=True):
    """The flags of `inferway bench validate`."""

    only: OnlyFlag = ()
    rate: Annotated[float, flag("Send this number of requests a second.", gt=0)] = 25.0
    seeds: Annotated[int, flag("Send chats of this number of seeds.", ge=1)] = 1
    sessions: int = 200  # of a seed

    @property
    def scenario(self) -> Scenario:
        """2,000 requests; eight engines hold half of what the chats have said when they end. They
        are fast: only what is cached is judged, and a policy that piles requests up must not take
        hours."""
        return Scenario(
            SimulatedEngines(blocks=768, prefill_us_per_token=60.0, inter_token_ms=5.0),
            ChatSpec(sessions=self.sessions, turns=10, systems=8, apart=30),
            warm_up_requests=40,
            bisections=0,
        )


def measure(plan: ValidatePlan, on_step: OnStep) -> Findings:
    """Send the chats and simulate them. Raises BenchError when no router is left, a router or an
    engine does not start, or a request fails."""
    policies = ("round_robin", "consistent_hash", "cache_aware")
    ours, _, *others = all_routers(policies, policies[2:], True, on_step)
    routers = chosen([ours, *others], plan.only)
    engines = plan.scenario.engines
    assert isinstance(engines, SimulatedEngines)
    with (
        TemporaryDirectory(prefix="inferway-validate-") as name,
        simulated_fleet(engines, Path(name)) as fleet,
        closing(EnginePrompts(str(prepare_smollm2()))) as prompts,
    ):
        rows = [row_of(router, plan, fleet, prompts, Path(name), on_step) for router in routers]
    spec, engine = plan.scenario.chats, engine_like(engines)
    return Findings(
        rows=rows,
        about=[
            f"- {engines.about}",
            f"- {spec.requests:,} requests of {spec.sessions} chats that share {spec.systems} "
            f"system prompts; load average {os.getloadavg()[0]:.2f} after the run",
            f"- a step of the simulation takes {engine.step_about}, as given to the engines",
        ],
        facts={"engines": engines.about},
        seeds=list(range(1, plan.seeds + 1)),
    )


def row_of(
    router: Router, plan: ValidatePlan, fleet: Fleet, prompts: EnginePrompts, directory: Path,
    on_step: OnStep,
) -> Row:  # fmt: skip
    """Return the figures of a router's seeds, and how far off their simulation is."""
    # the last word of a peer's name is its policy
    policy = OURS if router.is_ours else router.label.split()[-1].replace("_", "-")
    scenario, found = plan.scenario, []
    assert isinstance(scenario.engines, SimulatedEngines)
    engines = FleetSpec(scenario.engines.engines, 0, engine=engine_like(scenario.engines))
    for seed in range(1, plan.seeds + 1):
        place = directory / f"{router.label}-{seed}".replace(" ", "-")
        with standing(router, fleet, place) as one:
            on_step(f"warming up {router.label}")
            one.warm_up(scenario.chats, seed, plan.rate, scenario.warm_up_requests)
            sessions = chats(scenario.chats, seed, f"{policy}-{seed}", plan.rate)
            fleet.reset()
            on_step(f"{router.label}, seed {seed}: {scenario.chats.requests:,} requests")
            samples = one.carry(sessions).samples
        workload = as_workload(sessions, prompts, scenario.engines.block_size)
        found.append(compared(router.label, policy, seed, samples, workload, engines))
    values = {name: [one[name] for one in found] for name in found[0]}
    return Row("routers", {"router": router.label, "policy": policy}, {**values})


def compared(
    router: str, policy: str, seed: int, samples: Sequence[Sample], workload: Workload,
    fleet: FleetSpec,
) -> dict[str, float]:  # fmt: skip
    """Return the mean figures of the chats, measured and simulated; times in ms, shares in %.
    Raises BenchError when requests failed: then a simulation has others."""
    failed = [sample for sample in samples if not sample.ok]
    if failed or len(samples) != len(workload.requests):
        said = failed[0].detail or failed[0].error if failed else "some were not sent"
        raise BenchError(f"{router}: {len(failed)} of {len(samples)} requests failed: {said}")
    rate = workload.own_rate
    simulated = simulate(workload, rate, fleet, policy_named(policy), seed).figures(workload, rate)
    cached = sum(s.cached_tokens or 0 for s in samples) / sum(s.prompt_tokens or 0 for s in samples)
    ttft = fmean(s.ttft for s in samples if s.ttft is not None) * 1e3
    return {
        "requests": len(samples),
        "rate": rate,
        "ttft": ttft,
        "simulated_ttft": simulated.ttft,
        "ttft_error": (simulated.ttft / ttft - 1) * 100,
        "itl": fmean(s.itl for s in samples if s.itl is not None) * 1e3,
        "simulated_itl": simulated.itl,
        "cached": cached * 100,
        "simulated_cached": simulated.cached,
        "cached_error": simulated.cached - cached * 100,
    }


def as_workload(sessions: Sequence[Session], prompts: EnginePrompts, block_tokens: int) -> Workload:
    """Return all turns of `sessions` at their intended times. Their answers are replaced by what
    the sessions say, so none of an answer's blocks is reused; but they are kept, and displace
    others."""
    hasher = BlockHasher(block_tokens)
    requests, numbers = [], count(1)
    for session in sessions:
        conversation = Conversation()
        for turn, at in zip(session.turns, session.at, strict=True):
            _, body = conversation.ask(turn, {"model": "any"})
            ids = np.array(prompts.token_ids(body), np.uint32)
            blocks, output = tuple(hasher.keys(ids)), int(turn.fields["max_tokens"])
            # the last token of an answer is not computed
            num_answer = (len(ids) + output - 1) // block_tokens - len(blocks)
            requests.append(
                SimRequest(
                    blocks=blocks,
                    prompt_tokens=len(ids),
                    output_tokens=output,
                    session=session.number,
                    start=at,
                    # no key is negative
                    answer_blocks=tuple(-next(numbers) for _ in range(num_answer)),
                )
            )
            conversation.hear(turn, "")
    requests.sort(key=lambda request: request.start)
    return Workload("sent", "chats that were sent over HTTP", block_tokens, requests)


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


def _mean(name: str, head: str, form: str) -> Column:
    return Column(name, head, form, "mean alone")


VALIDATE = Benchmark(
    "validate",
    "Say whether the simulation is right: the same chats over HTTP and simulated, through real "
    "routers before engines that speak HTTP.",
    ValidatePlan,
    measure,
    (
        Table(
            "routers",
            "The same chats measured and simulated in virtual time",
            ("router", "policy"),
            (
                _mean("requests", "", "{:,.0f}"), _mean("rate", "requests/s", "{:,.1f}"),
                _mean("ttft", "TTFT, ms", "{:,.0f}"),
                _mean("simulated_ttft", "simulated", "{:,.0f}"),
                _mean("ttft_error", "error", "{:+.1f}%"), _mean("itl", "ITL, ms", "{:,.1f}"),
                _mean("simulated_itl", "simulated", "{:,.1f}"),
                _mean("cached", "cached", "{:.1f}%"),
                _mean("simulated_cached", "simulated", "{:.1f}%"),
                _mean("cached_error", "error, points", "{:+.1f}"),
            ),
        ),
    ),
    Chart(
        "{engines}",
        [
            Plot(
                "routers", (f"simulated_{name}",), x=name, by="router", mean=True,
                x_label=f"measured: {said}", y_label=f"simulated: {said}",
            )
            for name, said in (
                ("cached", "prompt tokens from a cache, %"), ("ttft", "mean TTFT, ms"),
            )
        ],
    ),
    quick={"sessions": 40, "only": ("inferway serve", "round_robin")},
    question="how close simulated policies come to the cached share of the real routers",
    takes="8 minutes",
    audience="user",
)  # fmt: skip
validate = VALIDATE.command()
