"""`inferway bench many-seeds`: which differences are true, and how many seeds show them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bench.tests.test_report import MACHINE

from inferway_bench.many_seeds.report import MANY_SEEDS
from inferway_bench.many_seeds.results import OURS, Cell, ManySeedsRun, Plan
from inferway_bench.many_seeds.run import plan_like, run_many_seeds, with_seeds
from inferway_bench.peers.plan import RealEngines
from inferway_bench.peers.workload import ChatSpec
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.processes import BenchError
from inferway_bench.results import read_run, write_run
from inferway_bench.simulate.validated import Plan as ValidatePlan
from inferway_bench.simulate.validated import ValidateRun

ENGINE = EngineSpec(step_seconds=0.02, prefill_seconds=5e-4, beside=1.2, cache_tokens=16_352)
PLAN = Plan(FleetSpec(num_engines=2, num_slow=0, engine=ENGINE), fitted="then")


def found(*pairs: tuple[float, float]) -> ManySeedsRun:
    """Seed by seed: ours, round-robin's."""
    cells = [
        Cell(policy, 0.75, seed, ttft, token_seconds=0.02, cached_share=0.5)
        for seed, both in enumerate(pairs)
        for policy, ttft in zip((OURS, "round-robin"), both, strict=True)
    ]
    plan = msgspec.structs.replace(PLAN, policies=(OURS, "round-robin"))
    return ManySeedsRun(MACHINE, "inferway bench many-seeds", plan, 2.0, cells)


def test_seeds_are_pairs() -> None:
    run = found((0.5, 0.6), (1.5, 1.62), (0.9, 0.98), (0.7, 0.8))

    less = run.difference("round-robin", 0.75)

    assert less.mean.value == pytest.approx(-0.1)
    assert less.deviation == pytest.approx(0.0163, rel=0.01)
    few = less.of(4)
    assert (few.low, few.high) == pytest.approx((-0.116, -0.084), rel=0.01)
    assert less.seeds == 2  # it is far off zero, and one seed has no interval
    assert not run.losses()


def test_it_says_how_many_seeds_it_takes() -> None:
    noisy = [0.1, -0.08] * 30
    run = found(*((1.0, 1.0 + less) for less in [*noisy, *([0.05] * 40)]))

    less = run.difference("round-robin", 0.75)

    assert less.mean.high < 0
    assert less.seeds == 31  # (1.96 * 0.0728 / 0.026) ** 2
    assert less.of(less.seeds).high <= 0 < less.of(less.seeds - 2).high


def test_no_number_of_seeds_shows_what_is_not_there() -> None:
    run = found((1.0, 1.1), (1.1, 1.0), (1.0, 1.1), (1.1, 1.0))

    assert run.difference("round-robin", 0.75).seeds is None
    assert "| none |" in MANY_SEEDS.markdown(run)


def test_who_is_sooner_is_told() -> None:
    run = found((1.0, 0.9), (1.1, 1.0), (1.2, 1.11))

    assert run.losses() == ["at 75% first tokens come sooner with round-robin"]


def test_a_run_simulates_every_policy_load_and_seed() -> None:
    chats = msgspec.structs.replace(PLAN.chats, chats=ChatSpec(sessions=8, turns=2, apart=2))
    plan = msgspec.structs.replace(PLAN, chats=chats, policies=(OURS, "round-robin"))
    steps: list[str] = []

    run = run_many_seeds(
        with_seeds(plan, 2, rate=3.0, loads=[0.5, 1.0]), lambda what, *_: steps.append(what)
    )

    keys = {(cell.policy, cell.load, cell.seed) for cell in run.cells}
    assert keys == {(p, ld, s) for p in plan.policies for ld in (0.5, 1.0) for s in (0, 1)}
    assert run.rate == 3.0
    assert all(cell.ttft > 0.02 and 0 < cell.cached_share < 1 for cell in run.cells)
    assert f"{OURS} at 50%" in steps
    assert read_run(write_run("many-seeds", run), ManySeedsRun) == run
    text = MANY_SEEDS.markdown(run)
    assert "75%" not in text
    assert "| round-robin |" in text
    (picture,) = MANY_SEEDS.pictures(run)
    assert picture.name == MANY_SEEDS.file


@pytest.mark.slow
def test_the_rate_is_where_round_robins_mean_doubles() -> None:
    chats = msgspec.structs.replace(PLAN.chats, chats=ChatSpec(sessions=8, turns=2, apart=2))
    plan = msgspec.structs.replace(PLAN, chats=chats, policies=(OURS, "round-robin"))

    run = run_many_seeds(with_seeds(plan, 2, None, [1.0]), lambda *_: None)

    idle = run_many_seeds(with_seeds(plan, 2, run.rate / 20, [1.0]), lambda *_: None)
    times = run.ttft("round-robin", 1.0).value / idle.ttft("round-robin", 1.0).value
    assert times == pytest.approx(2.0, rel=0.25)  # two bisections


def test_engines_are_as_they_were_found(tmp_path: Path) -> None:
    run = ValidateRun(
        machine=MACHINE, command="inferway bench validate --real",
        plan=ValidatePlan(RealEngines(layers=2), ChatSpec(), rate=2.5, seeds=(1,)),
        engine=ENGINE, is_fitted=True, compared=[], load_after=0.0,
    )  # fmt: skip
    stored = tmp_path / "validate_real.json"
    stored.write_bytes(write_run("validate --real", run))

    plan = plan_like(stored)

    assert plan.fleet.engine == ENGINE
    assert plan.fleet.num_engines == 2
    assert plan.chats.engines == RealEngines(layers=2)  # as its picture says
    with pytest.raises(BenchError, match="not a stored ValidateRun"):
        plan_like(tmp_path / "none.json")
