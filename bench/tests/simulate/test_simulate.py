"""`inferway bench simulate` and its presets: any traces, any fleets; what it says of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bench.tests.runs import unseen
from click.testing import CliRunner

from inferway_bench.harness import Benchmark
from inferway_bench.plotting import drawn
from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import FleetSpec, World
from inferway_bench.policies.simulate import simulate as run_fleet
from inferway_bench.processes import BenchError
from inferway_bench.rows import Run
from inferway_bench.simulate.report import (
    POLICIES,
    SIMULATE,
    PoliciesPlan,
    simulate,
)
from inferway_bench.simulate.run import Setting, SimulatePlan, Task, perform

SMALL = SimulatePlan(
    engines=(3,), gateways=(2,), requests=400, rate=20.0, seeds=2, processes=1
)  # fmt: skip
REPLACE = msgspec.structs.replace


def engine(plan: SimulatePlan) -> EngineSpec:
    return plan.fleet(plan.settings()[0]).engine


def run_of(plan: SimulatePlan, benchmark: Benchmark[SimulatePlan] = SIMULATE) -> Run:
    return benchmark.run(plan, unseen)


@pytest.fixture(scope="module")
def small() -> Run:
    return run_of(SMALL)


def test_a_run_has_a_row_for_each_policy_with_each_seed(small: Run) -> None:
    rows = small.select("simulations")

    assert [row.keys["policy"] for row in rows] == list(SMALL.policy)
    assert {len(row.repeats("ttft")) for row in rows} == {2}
    assert [(row.values["rate"], row.keys["gateways"]) for row in rows] == [(20.0, 2)] * 2
    assert (small.benchmark, small.seeds, small.is_virtual) == ("simulate", [1, 2], True)


def test_the_report_has_every_policy(small: Run) -> None:
    text = SIMULATE.markdown(small)

    assert "| round-robin |" in text
    assert "| expected-ttft |" in text
    assert "chats, engines: 3, gateways: 2, load: 100%" in text
    assert "3 engines, all alike" in text


def test_who_knows_the_caches_reuses_more(small: Run) -> None:
    blind, ours = small.select("simulations")

    assert ours.median("cached") > blind.median("cached")


def test_processes_find_what_one_process_finds(small: Run) -> None:
    both = run_of(REPLACE(SMALL, processes=2))

    for one, other in zip(small.select("simulations"), both.select("simulations"), strict=True):
        assert one.values["ttft"] == other.values["ttft"]


def test_fleets_of_several_sizes_get_the_same_load_for_each_engine() -> None:
    run = run_of(REPLACE(SMALL, engines=(2, 4), seeds=1))

    rows = run.select("simulations", policy="round-robin")
    assert [(row.keys["engines"], row.values["rate"]) for row in rows] == [(2, 20.0), (4, 40.0)]
    assert "chats, engines: 4, gateways: 2" in SIMULATE.markdown(run)


def test_a_load_is_a_share_of_the_rate_at_which_round_robin_takes_twice_as_long() -> None:
    plan = REPLACE(SMALL, rate=None, policy=("round-robin",), load=(0.5, 1.0), seeds=1)
    run = run_of(plan)
    slow, fast = run.select("simulations")
    idle, full = (
        perform(Task(plan, Setting("chats", 3, 2), 1.0, "round-robin", 1, rate)).ttft
        for rate in (1 / 60, fast.median("rate"))
    )

    assert fast.values["rate"] == pytest.approx(2 * slow.median("rate"))
    assert full <= 2 * idle
    assert run.select("traces")[0].values["idle_ttft"] == idle


def test_a_traces_caches_may_be_named() -> None:
    plan = SimulatePlan(trace=("chats", "chats@1000"), gateways=(1, 2))

    assert [(s.trace, s.gateways) for s in plan.settings()] == [
        ("chats", 1), ("chats", 2), ("chats@1000", 1), ("chats@1000", 2),
    ]  # fmt: skip
    assert [plan.fleet(s).engine.cache_tokens for s in plan.settings()[::2]] == [524_288, 1_000]


def test_an_engine_is_what_its_words_say() -> None:
    spec = engine(SimulatePlan(engine=("prefill_seconds=0.001", "max_num_seqs=4")))

    assert (spec.prefill_seconds, spec.max_num_seqs) == (0.001, 4)


@pytest.mark.parametrize(
    ("word", "why"), [("speed=3", "`speed`; the keys are step_seconds"), ("max_num_seqs=x", "int")]
)
def test_a_word_that_is_none_is_refused(word: str, why: str) -> None:
    with pytest.raises(BenchError, match=why):
        engine(SimulatePlan(engine=(word,)))


def test_a_policy_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(BenchError, match="no policy 'best'; known: random"):
        run_of(REPLACE(SMALL, policy=("best",)))


def test_a_missing_trace_is_told_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="fix: give the path of the trace, or its folder"):
        run_of(SimulatePlan(trace=("mooncake",), data=tmp_path))


def test_the_command_shows_its_tables() -> None:
    flags = ["--requests", "100", "--rate", "20", "--engines", "2", "--processes", "1"]

    shown = CliRunner().invoke(simulate, [*flags, "--policy", "random"])

    assert shown.exit_code == 0, shown.output
    assert "random" in shown.output
    assert CliRunner().invoke(simulate, ["--slow", "9"]).exit_code == 1


# presets

TINY = PoliciesPlan(
    trace=("chats",), requests=300, load=(0.75,), seeds=2,
    policy=("round-robin", "llm-d-default", "kv-aware", "expected-ttft", "oracle"),
    gateways=(1,), bisections=2, processes=1,
)  # fmt: skip


def test_policies_are_compared_with_llm_ds_and_the_oracle() -> None:
    run = run_of(TINY, POLICIES)

    text = POLICIES.markdown(run)
    assert all(f"| {name} |" in text for name in TINY.policy)
    assert {row.keys["load"] for row in run.select("simulations")} == {"75%"}
    assert POLICIES.chart is not None
    assert len(drawn(run, POLICIES.chart, "").rows[0]) == 2


# the way to the engine


def test_a_request_takes_its_time_to_the_engine() -> None:
    alone = SimRequest(blocks=(1, 2), prompt_tokens=250, output_tokens=1, session=1)
    work = Workload("one", "one request", 100, [alone])
    near = FleetSpec(num_engines=1, num_slow=0)
    far = REPLACE(near, engine=EngineSpec(request_seconds=0.5))

    took = [
        float(run_fleet(work, 1.0, fleet, policy_named("round-robin"), 1).ttft[0])
        for fleet in (near, far)
    ]

    assert took[1] == pytest.approx(took[0] + 0.5)
    assert took[1] == pytest.approx(far.engine.idle_ttft(250))


def test_a_world_is_what_a_policy_is_made_of() -> None:
    seen: list[World] = []

    def make(world: World):  # type: ignore[no-untyped-def]
        seen.append(world)
        return policy_named("random")(world)

    work = Workload(
        "one", "", 8, [SimRequest(blocks=(), prompt_tokens=1, output_tokens=1, session=1)]
    )
    run_fleet(work, 1.0, FleetSpec(num_gateways=3), make, 1)

    assert len({world.random.random() for world in seen}) == 3
