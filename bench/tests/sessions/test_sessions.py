"""Agents on a simulated fleet: what they ask, who lets them in, and what is shown of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from bench.tests.runs import a_run, unseen

from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.engine import Engine, EngineSpec
from inferway_bench.policies.gateway import Policy
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.processes import BenchError
from inferway_bench.rows import Row
from inferway_bench.sessions.agents import Agents, agents, mean_need, sessions_of
from inferway_bench.sessions.benchmark import ADMISSION, SESSIONS, SessionsPlan, goals, losses
from inferway_bench.sessions.figures import SessionFigures, figures
from inferway_bench.sessions.oracles import fitting
from inferway_bench.sessions.ours import admission, with_sessions
from inferway_bench.sessions.programs import programs
from inferway_bench.sessions.run import Admission, AgentsRun, Everyone, MakeAdmission

SIZE = 512
ENGINE = EngineSpec(cache_tokens=100 * SIZE)
FLEET = FleetSpec(2, 0, engine=ENGINE)
SECONDS, WARM_UP = 400.0, 100.0


def trace(turns: int = 8) -> Workload:
    """Four sessions whose prompts grow by two blocks a turn, from ten on."""
    requests = [
        SimRequest(
            blocks=tuple(range(10 + 2 * turn)),
            prompt_tokens=(10 + 2 * turn) * SIZE + 5,
            output_tokens=20,
            session=session,
            follows=session * turns + turn - 1 if turn else None,
            think=2.0,
        )
        for session in range(4)
        for turn in range(turns)
    ]
    return Workload("trace", "", SIZE, requests)


def asked(number: int, seed: int = 1) -> Agents:
    return agents(trace(), number, SECONDS, 20.0, ENGINE, seed)


def run(number: int, make: MakeAdmission, fleet: FleetSpec = FLEET) -> SessionFigures:
    """So many agents, of whom each needs about 17 of the fleet's 200 blocks."""
    them = asked(number)
    policy = with_sessions if make is admission else policy_named("expected-ttft")
    outcome = AgentsRun(them, fleet, policy, make, SECONDS, 1).run()
    assert (outcome.num_ended <= 1).all()
    return figures(them, ENGINE, outcome, WARM_UP, SECONDS)


def test_turns_of_an_agent_follow_each_other_and_share_no_block_with_others() -> None:
    them = asked(5)
    owners: dict[int, int] = {}
    for request in them.workload.requests:
        for block in request.blocks:
            assert owners.setdefault(block, request.session) == request.session
    starts = [request.start for request in them.workload.requests]
    followed = [each.follows for each in them.workload.requests if each.follows is not None]

    assert starts == sorted(starts)
    assert len(set(followed)) == len(followed)
    assert len(starts) - len(followed) == 5
    for index, request in enumerate(them.workload.requests):
        if not them.last[index]:
            after = them.workload.requests[int(them.next[index])]
            assert (after.follows, after.session) == (index, request.session)


def test_what_is_known_of_the_future_is_so() -> None:
    them = asked(3)
    for index, request in enumerate(them.workload.requests):
        mine = [
            each.prompt_tokens + each.output_tokens
            for each in them.workload.requests
            if each.session == request.session and each.prompt_tokens >= request.prompt_tokens
        ]
        assert them.peak_tokens[index] == max(mine)
        if not them.first[index]:
            assert them.kept_tokens[index] == len(request.blocks[:-2]) * SIZE


def test_a_live_session_needs_the_mean_of_its_turns() -> None:
    held = [(10 + 2 * turn) * SIZE + 25 for turn in range(8)]

    assert mean_need(sessions_of(trace())) == pytest.approx(np.mean(held))


def test_beyond_the_edge_letting_fewer_in_has_more_good_turns() -> None:
    alone, oracle, ours = (
        run(40, make) for make in (lambda *_: Everyone(), fitting(1.0), admission)
    )

    assert oracle.goodput > 1.3 * alone.goodput
    assert ours.goodput > 1.3 * alone.goodput
    assert oracle.sessions > alone.sessions


def test_below_the_edge_nothing_changes() -> None:
    fleet = FleetSpec(2, 0, engine=EngineSpec(cache_tokens=1_000 * SIZE))
    alone, ours = run(4, lambda *_: Everyone(), fleet), run(4, admission, fleet)

    assert ours == alone


@pytest.mark.parametrize("make", [fitting(1.0, 1.0), admission, programs()])
def test_nobody_waits_for_ever(make: MakeAdmission) -> None:
    found = run(20, make)

    assert found.turns > 0
    assert found.sessions > 0


def test_no_engine_is_promised_more_than_it_holds() -> None:
    made: list[Admission] = []

    def make(them: Agents, engines: Sequence[Engine], policy: Policy) -> Admission:
        made.append(fitting(1.0)(them, engines, policy))
        return made[0]

    found = run(40, make)

    assert found.ttft_p90 < 2.0  # everything is found in a cache
    assert math.isinf(made[0].wakes())


def row(system: str, load: float, goodput: float) -> Row:
    keys = {"tools": "1", "load": f"{load:g}", "system": system}
    return Row("sessions", keys, {"goodput": [goodput], "turns": [3.0]})


def test_it_is_judged_beyond_the_edge_and_below_it() -> None:
    found = a_run(
        "sessions",
        [
            *(row("expected-ttft", 0.8, 1.0), row(ADMISSION, 0.8, 0.985)),
            *(row("expected-ttft", 1.5, 0.5), row(ADMISSION, 1.5, 1.0)),
            *(row("vllm-router", 1.5, 0.8), row("vllm-router", 0.8, 1.2)),
        ],
    )

    assert [each.is_met for each in goals(found)] == [False, True, False, True]
    assert losses(found) == [
        "tools × 1, load 0.8: the goodput of vllm-router is 1.22 times that of session-admission"
    ]


def test_a_plan_is_simulated_and_shown() -> None:
    plan = SessionsPlan(
        system=("expected-ttft", ADMISSION), load=(0.5,), tools=(1.0,), engines=1, minutes=2.0,
        warm_up=1.0,
    )  # fmt: skip

    found = a_run("sessions", SESSIONS.measure(plan, unseen), plan=msgspec.to_builtins(plan))

    assert [one.keys["system"] for one in found.rows] == ["expected-ttft", ADMISSION]
    assert "Goodput, good turns a second" in SESSIONS.markdown(found)


def test_a_system_that_is_not_known_is_refused() -> None:
    with pytest.raises(BenchError, match="--system 'none': expected one of expected-ttft"):
        SESSIONS.measure(SessionsPlan(system=("none",)), unseen)
