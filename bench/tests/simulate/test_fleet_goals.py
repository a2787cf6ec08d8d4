"""`inferway bench policies --fleet`: what is asked beside peers, and where events pay."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bench.tests.test_report import MACHINE

from inferway_bench.policies.chats import ChatSpec
from inferway_bench.policies.engine import Engine, EngineSpec, Job
from inferway_bench.policies.gateway import Feed, Gateway, Policy
from inferway_bench.policies.holders import Holders
from inferway_bench.policies.plan import FLEET, Plan
from inferway_bench.policies.report import POLICIES_FLEET
from inferway_bench.policies.requests import SimRequest
from inferway_bench.policies.results import Described, Loaded, PoliciesRun, Row
from inferway_bench.policies.run import run_more, run_policies
from inferway_bench.policies.simple import RoundRobin
from inferway_bench.policies.simulate import FleetSpec

BEST = {"cache-aware": 1.6, "llm-d-default": 1.8, "dynamo-cost": 1.2, "best-weighted": 1.05}


def made(gateways: int = 4, workload: str = "mooncake", **p90: float) -> PoliciesRun:
    found = {"round-robin": 3.0, "expected-ttft": 1.0, "oracle": 0.8, **BEST, **p90}
    rows = [
        Row(
            workload=workload, gateways=gateways, load=0.75, policy=name, seed=seed, rate=3.0,
            requests=100, ttft=1.0, ttft_p50=1.0, ttft_p90=value * seed, ttft_p99=1.0,
            token_seconds=0.01, cached_share=0.25, slow_share=0.0, cpu_seconds=1.0,
        )
        for name, value in found.items()
        for seed in (1, 2)
    ]  # fmt: skip
    plan = msgspec.structs.replace(
        FLEET, workloads=(workload,), loads=(0.75,), gateways=(gateways,), seeds=2
    )
    loaded = Loaded(workload, "a trace", 100, 0.1, 4.0, {})
    described = [Described(name, "what it does", False) for name in found]
    return PoliciesRun(MACHINE, "inferway bench policies", plan, described, [loaded], rows)


def test_the_best_of_each_kind_is_what_ours_is_judged_by() -> None:
    blind, told = made().load_goals()

    assert (blind.other, blind.found.value, blind.is_met) == ("cache-aware", 1.6, True)
    assert (told.other, told.found.value, told.is_met) == ("best-weighted", 1.05, False)
    assert blind.oracle is not None
    assert blind.oracle.value == pytest.approx(2.0)


@pytest.mark.parametrize(("gateways", "workload"), [(1, "mooncake"), (4, "azure")])
def test_nothing_is_asked_of_one_gateway_or_of_traces_without_blocks(
    gateways: int, workload: str
) -> None:
    assert made(gateways, workload).load_goals() == []


def test_the_report_says_where_events_pay() -> None:
    text = POLICIES_FLEET.markdown(made(workload="chats@8388608"))

    assert "| chats | 8,388,608 | 4 | 25.0% | 3.00 (3.00 to 3.00) round-robin |" in text


def test_a_workloads_caches_may_be_named() -> None:
    assert FLEET.cache_of("chats") == FLEET.cache_tokens["chats"]
    assert FLEET.cache_of("chats@1000") == 1_000
    assert FLEET.fleet_for("chats@1000", 2).engine.cache_tokens == 1_000


def test_a_workload_is_added_and_the_rest_is_kept() -> None:
    plan = Plan(
        workloads=("chats",),
        chats=ChatSpec(num_requests=120, mean_turns=2.0, think_seconds=1.0),
        policies=("round-robin", "expected-ttft"),
        fleet=FleetSpec(num_engines=2, num_slow=0),
        loads=(0.75,),
        seeds=1,
        gateways=(1,),
        curve=(),
        bisections=1,
        processes=1,
    )
    before = run_policies(plan, Path("no traces"), lambda *_: None)
    more = msgspec.structs.replace(plan, workloads=("chats@400000",))

    both = run_more(before, more, Path("no traces"), lambda *_: None)

    assert [w.name for w in both.workloads] == ["chats", "chats@400000"]
    assert both.rows[:2] == before.rows
    assert [(row.workload, row.policy) for row in both.rows[2:]] == [
        ("chats@400000", "round-robin"),
        ("chats@400000", "expected-ttft"),
    ]
    assert both.plan.workloads == ("chats", "chats@400000")


# who holds what


def test_many_holders_are_found_as_few_are() -> None:
    holders = Holders()
    for engine in range(100):
        holders.add(engine, range(1 + engine % 3))

    found = holders.match([0, 1, 2, 3])

    assert found == {engine: 1 + engine % 3 for engine in range(100)}


def test_what_is_removed_is_held_no_more() -> None:
    holders = Holders()
    holders.add(0, [1, 2])
    holders.add(70, [1, 2])
    holders.remove(70, [2])

    assert holders.match([1, 2]) == {0: 2, 70: 1}
    assert holders.match([2]) == {0: 1}
    assert holders.match([]) == {}


# what an engine tells


def test_an_engine_tells_of_a_step_when_it_is_over() -> None:
    spec = EngineSpec(max_batched_tokens=1_000)
    engine = Engine(0, spec, 100)
    policy = Policy(RoundRobin(-1))
    gateway = Gateway([engine], 100, policy, Feed(0.0), 0.2)
    long = SimRequest(blocks=(), prompt_tokens=1_500, output_tokens=5, session=1)

    for index in range(3):
        engine.add(Job(index, long, 0.0, gateway), 0.0)
    before = engine.told
    engine.end()
    first = engine.told
    engine.plan(1.0)
    engine.end()
    second = engine.told

    assert (before.running, before.waiting) == (0, 0)
    assert (first.running, first.waiting, first.unbegun) == (1, 0, 1)
    assert (second.running, second.waiting, second.unbegun) == (2, 1, 2)
