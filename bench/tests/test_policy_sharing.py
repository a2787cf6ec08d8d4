"""Gateways that tell each other what they do know it once it has come, and end as one would."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.engine import Engine, EngineSpec, Job
from inferway_bench.policies.gateway import (
    WORKERS,
    Counted,
    Feed,
    Gateway,
    Post,
    SharingSpec,
    sharing_named,
)
from inferway_bench.policies.outcome import Outcome
from inferway_bench.policies.requests import ChatSpec, SimRequest, Workload, chats
from inferway_bench.policies.simulate import FleetSpec, World, simulate
from inferway_bench.processes import BenchError

BLOCK = 100
FLEET = FleetSpec(num_engines=4, num_slow=0, engine=EngineSpec(cache_tokens=150_000))
LOADED = chats(3, ChatSpec(num_requests=600, think_seconds=1.0, most_tokens=8_000))
LONG_RATE = 3.0  # of prompts that take 0.65 s: two of four engines are busy
OURS = "expected-ttft"


def run(policy: str, gateways: int) -> Outcome:
    fleet = msgspec.structs.replace(FLEET, num_gateways=gateways)
    return simulate(LOADED, 12.0, fleet, policy_named(policy), seed=1)


def long_prompts() -> Workload:
    """Prompts of 8,000 tokens that nobody shares, whenever they come."""
    drawn, start, requests = Random(1), 0.0, []
    for number in range(600):
        blocks = tuple(range(100 * number, 100 * number + 79))
        requests.append(
            SimRequest(
                blocks=blocks, prompt_tokens=8_000, output_tokens=20, session=number, start=start
            )
        )
        start += drawn.expovariate(LONG_RATE)
    return Workload("long", "long prompts", BLOCK, requests)


class Gateways:
    """Some gateways before three engines, a request of 300 tokens each time one is sent, and what
    time it is."""

    def __init__(self, spec: SharingSpec, number: int) -> None:
        self.now = 0.0
        self.spec = spec
        self.under_way: list[tuple[Job, int]] = []
        asked = SimRequest(blocks=(1, 2), prompt_tokens=300, output_tokens=5, session=1)
        self.work = Workload("by hand", "the same again and again", BLOCK, [asked])
        engines = [Engine(i, EngineSpec(), BLOCK) for i in range(3)]
        world = World(engines, [asked], BLOCK, Random(1), lambda: self.now)
        make = policy_named(OURS)
        self.gateways = [
            Gateway(engines, BLOCK, make(world), Feed(0.0), 0.2) for _ in range(number)
        ]
        post = Post(spec, number, lambda: self.now)
        for place, gateway in enumerate(self.gateways):
            gateway.join(post, place, self.gateways[0])

    def send(self, which: int) -> int:
        job = Job(0, self.work.requests[0], self.now, self.gateways[which])
        row = job.gateway.route(job, self.work.llm(0), self.now)
        self.under_way.append((job, row))
        return row

    def begin(self, number: int) -> None:
        job, _ = self.under_way[number]
        job.gateway.on_first_token(job, self.now)

    def end(self, number: int) -> None:
        job, row = self.under_way.pop(number)
        job.gateway.on_first_token(job, self.now)
        job.gateway.on_stored(job)
        job.gateway.on_end(job, row, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for gateway in self.gateways:
            gateway.hear(self.now)

    def in_flight(self) -> list[list[float]]:
        return [gateway.table.in_flight.tolist() for gateway in self.gateways]

    def waiting(self) -> list[list[float]]:
        """The requests that each gateway takes for waiting, by engine."""
        found = []
        for gateway in self.gateways:
            [plugin] = gateway.policy.learning
            slots = [plugin.slots.slot_of(f"engine-{i}", self.now) for i in range(3)]
            found.append(plugin.learning.backlog.requests[slots].tolist())
        return found


# what is told, and when it is known


def test_what_is_told_within_a_short_time_comes_together_to_all_others() -> None:
    now = 0.0
    post = Post(SharingSpec(0.02, 0.01), 3, lambda: now)
    first, second, third = (Counted(row, 1, 0.0) for row in range(3))
    post.tell(0, first)
    now = 0.015
    post.tell(0, second)
    now = 0.025
    post.tell(0, third)

    assert list(post.arrived(1, 0.03)) == []
    assert list(post.arrived(1, 0.031)) == [(0, first), (0, second)]
    assert list(post.arrived(2, 1.0)) == [(0, first), (0, second), (0, third)]
    assert list(post.arrived(0, 1.0)) == []


def test_a_gateway_knows_of_anothers_request_when_it_has_been_told() -> None:
    both = Gateways(sharing_named("peers@50"), 2)
    row = both.send(0)
    counted = [float(i == row) for i in range(3)]

    both.wait(0.04)
    before = both.in_flight()[1], both.waiting()[1], both.gateways[1].overlay.num_blocks(row)
    both.wait(0.02)
    after = both.in_flight()[1], both.waiting()[1], both.gateways[1].overlay.num_blocks(row)

    assert before == ([0.0] * 3, [0.0] * 3, 0)
    assert after == (counted, counted, 2)


def test_prompts_are_told_only_if_that_is_asked_for() -> None:
    both = Gateways(sharing_named("load@20"), 2)
    row = both.send(0)

    both.wait(1.0)

    assert both.in_flight()[1][row] == 1.0
    assert both.gateways[1].overlay.num_blocks(row) == 0


def test_workers_count_in_the_same_memory() -> None:
    both = Gateways(WORKERS, 2)

    row = both.send(0)

    assert both.in_flight()[1][row] == 1.0
    assert both.waiting()[1][row] == 0.0
    both.wait(0.003)
    assert both.waiting()[1][row] == 1.0


steps = st.lists(
    st.tuples(st.sampled_from(["send", "begin", "end"]), st.integers(0, 5), st.floats(0.0, 0.05)),
    max_size=25,
)


@given(name=st.sampled_from(["workers", "load@20", "peers@20", "peers@50"]), story=steps)
def test_once_all_has_come_every_gateway_knows_what_is_under_way(
    name: str, story: list[tuple[str, int, float]]
) -> None:
    some = Gateways(sharing_named(name), 3)
    begun: set[int] = set()
    for act, which, seconds in story:
        some.now += seconds
        if act == "send":
            some.send(which % 3)
        elif some.under_way and act == "begin":
            job, _ = some.under_way[which % len(some.under_way)]
            if id(job) not in begun:
                begun.add(id(job))
                some.begin(which % len(some.under_way))
        elif some.under_way:
            job, _ = some.under_way[which % len(some.under_way)]
            if id(job) not in begun:
                some.end(which % len(some.under_way))
    some.wait(1.0)

    rows = [row for _, row in some.under_way]
    waiting = [row for job, row in some.under_way if id(job) not in begun]
    assert some.in_flight() == [[rows.count(i) for i in range(3)]] * 3
    assert some.waiting() == [[waiting.count(i) for i in range(3)]] * 3
    blocks = [2 * (i in rows) for i in range(3)]
    told = some.gateways if some.spec.prompts else []
    assert [[g.overlay.num_blocks(i) for i in range(3)] for g in told] == [blocks] * len(told)


# a whole run


@pytest.mark.parametrize("sharing", ["workers", "load@20", "peers@20"])
def test_one_gateway_has_nobody_to_tell(sharing: str) -> None:
    alone, shared = run(OURS, 1), run(f"{OURS}+{sharing}", 1)

    assert np.array_equal(alone.engine, shared.engine)
    assert np.array_equal(alone.ttft, shared.ttft)


@pytest.mark.parametrize("policy", [OURS, "kv-aware", "least-request"])
@pytest.mark.parametrize("sharing", ["workers", "load@20", "peers@50"])
def test_every_request_ends_once(policy: str, sharing: str) -> None:
    outcome = run(f"{policy}+{sharing}", 3)

    assert set(outcome.num_ended.tolist()) == {1}
    assert (outcome.ttft > 0).all()


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = run(f"{OURS}+peers@20", 3), run(f"{OURS}+peers@20", 3)

    assert np.array_equal(first.engine, second.engine)


def test_who_is_told_answers_sooner_than_who_is_not() -> None:
    work = long_prompts()
    fleet = msgspec.structs.replace(FLEET, num_engines=8, num_gateways=4)

    alone, told, workers, oracle = (
        simulate(work, 2 * LONG_RATE, fleet, policy_named(name), seed=1).ttft.mean()
        for name in (OURS, f"{OURS}+peers@20", f"{OURS}+workers", "oracle")
    )

    assert told < 0.95 * alone
    assert max(told, workers) < 1.1 * oracle


@pytest.mark.parametrize("name", ["", "load", "peers@", "peers@soon", "hub"])
def test_sharing_that_is_not_known_is_an_error(name: str) -> None:
    with pytest.raises(BenchError, match="not known; known: workers, and load@MS"):
        sharing_named(name)
