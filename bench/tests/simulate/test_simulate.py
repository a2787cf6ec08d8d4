"""`inferway bench simulate`: any trace, any fleet; what it says of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from inferway_bench.cli.simulate import simulate as command
from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import FleetSpec, World, simulate
from inferway_bench.processes import BenchError
from inferway_bench.results import read_run, write_run
from inferway_bench.simulate.plan import Plan, engine_spec, load
from inferway_bench.simulate.report import SIMULATE, SIMULATE_ENGINES
from inferway_bench.simulate.results import SimulateRun
from inferway_bench.simulate.run import run_more, run_simulate

SMALL = Plan(
    "chats",
    policies=("round-robin", "expected-ttft"),
    fleet=FleetSpec(num_engines=3, num_slow=0, num_gateways=2),
    requests=400,
    rate=20.0,
    seeds=(1, 2),
)


@pytest.fixture(scope="module")
def small() -> SimulateRun:
    return run_simulate(SMALL, Path("no data"), lambda *_: None)


def test_a_run_has_each_policy_with_each_seed(small: SimulateRun) -> None:
    found = [(row.seed, row.policy) for row in small.rows]

    assert found == [(seed, name) for seed in (1, 2) for name in SMALL.policies]
    assert {(row.rate, row.gateways) for row in small.rows} == {(20.0, 2)}


def test_a_run_is_read_as_it_was_written(small: SimulateRun) -> None:
    assert read_run(write_run("simulate", small), SimulateRun) == small


def test_the_report_has_every_policy(small: SimulateRun) -> None:
    text = SIMULATE.markdown(small)

    assert "| round-robin |" in text
    assert "| expected-ttft |" in text
    assert "3 engines, 2 gateways" in text


def test_who_knows_the_caches_reuses_more(small: SimulateRun) -> None:
    blind, ours = small.rows[:2]

    assert ours.cached_share > blind.cached_share


def test_a_policy_is_added_at_the_same_rate_and_the_rest_is_kept(small: SimulateRun) -> None:
    plan = msgspec.structs.replace(SMALL, policies=("expected-ttft", "random"))

    more = run_more(small, plan, Path("none"), lambda *_: None)

    names = ["round-robin", "expected-ttft", "random"]
    assert [row.policy for row in more.rows] == [name for name in names for _ in (1, 2)]
    assert {row.rate for row in more.rows} == {20.0}
    assert [row for row in more.rows if row.policy == "round-robin"] == [
        row for row in small.rows if row.policy == "round-robin"
    ]
    assert more.kept.startswith("round-robin: ")


def test_nothing_is_added_to_another_load(small: SimulateRun) -> None:
    plan = msgspec.structs.replace(SMALL, requests=300)

    with pytest.raises(BenchError, match="the cure: the same flags"):
        run_more(small, plan, Path("none"), lambda *_: None)


def test_fleets_of_several_sizes_get_the_same_load_for_each_engine() -> None:
    plan = msgspec.structs.replace(SMALL, sizes=(2, 4), seeds=(1,))

    run = run_simulate(plan, Path("none"), lambda *_: None)

    assert [(row.engines, row.rate) for row in run.select("round-robin")] == [(2, 20.0), (4, 40.0)]
    assert len({figure.name for figure in run.figures()}) == 2 * 2 * 4
    text = SIMULATE_ENGINES.markdown(run)
    assert "chats, 2 engines, 2 gateways; mean TTFT" in text
    assert "chats, 4 engines, 2 gateways; mean TTFT" in text
    [picture] = SIMULATE_ENGINES.pictures(run)
    assert [line.label for line in picture.rows[0][0].lines] == list(plan.policies)


@pytest.mark.parametrize(("engines", "requests", "judged"), [(1_000, 10**6, 1), (999, 10**6, 0)])
def test_only_a_large_run_is_judged_by_its_time(
    small: SimulateRun, engines: int, requests: int, judged: int
) -> None:
    fleet = msgspec.structs.replace(SMALL.fleet, num_engines=engines)
    plan = msgspec.structs.replace(SMALL, fleet=fleet)
    run = msgspec.structs.replace(small, plan=plan, requests=requests)

    assert len(run.goals()) == judged


@pytest.mark.slow
def test_a_load_is_a_share_of_the_rate_at_which_round_robin_takes_twice_as_long() -> None:
    plan = msgspec.structs.replace(SMALL, rate=None, policies=("round-robin",), seeds=(1,))
    slow, fast = (
        run_simulate(msgspec.structs.replace(plan, load=share), Path("none"), lambda *_: None)
        for share in (0.5, 1.0)
    )

    assert fast.rows[0].rate == pytest.approx(2 * slow.rows[0].rate)


def test_thinking_takes_as_many_times_as_long() -> None:
    usual, longer = (
        load(msgspec.structs.replace(SMALL, think=factor), Path("none"), 1) for factor in (1.0, 3.0)
    )

    assert [3 * r.think for r in usual.requests] == [r.think for r in longer.requests]


def test_an_engine_is_what_its_words_say() -> None:
    spec = engine_spec(("prefill_seconds=0.001", "max_num_seqs=4"), EngineSpec())

    assert (spec.prefill_seconds, spec.max_num_seqs) == (0.001, 4)


@pytest.mark.parametrize(
    ("word", "why"), [("speed=3", "no 'speed'; known: step_seconds"), ("max_num_seqs=x", "int")]
)
def test_a_word_that_is_none_is_refused(word: str, why: str) -> None:
    with pytest.raises(BenchError, match=why):
        engine_spec((word,), EngineSpec())


def test_a_policy_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(BenchError, match="no policy 'best'; known: random"):
        run_simulate(
            msgspec.structs.replace(SMALL, policies=("best",)), Path("no"), lambda *_: None
        )


def test_a_rate_and_a_load_are_one_too_many() -> None:
    asked = CliRunner().invoke(command, ["--trace", "chats", "--rate", "1", "--load", "1"])

    assert asked.exit_code == 2
    assert "give one of them" in asked.output


# the way to the engine


def test_a_request_takes_its_time_to_the_engine() -> None:
    alone = SimRequest(blocks=(1, 2), prompt_tokens=250, output_tokens=1, session=1)
    work = Workload("one", "one request", 100, [alone])
    near = FleetSpec(num_engines=1, num_slow=0)
    far = msgspec.structs.replace(near, engine=EngineSpec(request_seconds=0.5))

    took = [
        float(simulate(work, 1.0, fleet, policy_named("round-robin"), 1).ttft[0])
        for fleet in (near, far)
    ]

    assert took[1] == pytest.approx(took[0] + 0.5)
    assert took[1] == pytest.approx(far.engine.idle_ttft(250))


@pytest.mark.parametrize("gateways", [1, 2])
def test_progress_is_told_now_and_then(gateways: int) -> None:
    told: list[int] = []
    fleet = FleetSpec(num_engines=2, num_slow=0, num_gateways=gateways)
    requests = [
        SimRequest(blocks=(), prompt_tokens=9, output_tokens=1, session=i, start=float(i))
        for i in range(4_100)
    ]
    work = Workload("many", "short ones", 100, requests)

    simulate(work, 1.0, fleet, policy_named("random"), 1, told.append)

    assert told == [2_000, 4_000]


def test_a_world_is_what_a_policy_is_made_of() -> None:
    seen: list[World] = []

    def make(world: World):  # type: ignore[no-untyped-def]
        seen.append(world)
        return policy_named("random")(world)

    work = Workload(
        "one", "", 8, [SimRequest(blocks=(), prompt_tokens=1, output_tokens=1, session=1)]
    )
    simulate(work, 1.0, FleetSpec(num_gateways=3), make, 1)

    assert len({world.random.random() for world in seen}) == 3
