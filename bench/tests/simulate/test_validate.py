"""`inferway bench validate`: constants from measurements, and the comparison."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np
import pytest
from bench.tests.peers.test_run import RoundRobin
from bench.tests.runs import a_run, unseen
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway_bench.engine_prompts import EnginePrompts
from inferway_bench.loading.samples import Sample
from inferway_bench.peers.fleets import simulated_fleet
from inferway_bench.peers.measuring import standing
from inferway_bench.peers.plan import Scenario, SimulatedEngines
from inferway_bench.peers.workload import ChatSpec, chats
from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.processes import BenchError
from inferway_bench.rows import Run
from inferway_bench.simulate.compared import Sent, as_workload, compared
from inferway_bench.simulate.constants import division
from inferway_bench.simulate.fitting import (
    First,
    Measured,
    Tokens,
    fit,
    fit_beside,
    fit_pauses,
)
from inferway_bench.simulate.validate import (
    VALIDATE,
    VALIDATE_REAL,
    Tour,
    ValidatePlan,
    engine_like,
    findings,
    router_row,
)
from inferway_sim.prepare import prepare_smollm2

TRUE = EngineSpec(
    step_seconds=0.02,
    decode_seconds=0.003,
    context_seconds=2e-6,
    prefill_seconds=0.0006,
    attention_tokens=4_000,
    request_seconds=0.015,
    cache_tokens=10_000,
)
PROMPTS = [(0, 100), (0, 400), (0, 1_000), (0, 1_600), (512, 900)]


def tokens(spec: EngineSpec) -> list[Tokens]:
    each = {context: spec.decode_seconds + context * spec.context_seconds for context in (99, 900)}
    return [
        Tokens(batch, context, spec.step_seconds + batch * seconds)
        for context, seconds in each.items()
        for batch in (1, 2, 4)
    ]


TOKENS = tokens(TRUE)


def firsts(spec: EngineSpec) -> list[First]:
    return [First(cached, prompt, spec.idle_ttft(prompt, cached)) for cached, prompt in PROMPTS]


# fitting


@pytest.mark.parametrize("attention", [0, 4_000])
@pytest.mark.parametrize("context", [0.0, 2e-6])
def test_constants_are_found_again(attention: int, context: float) -> None:
    true = msgspec.structs.replace(TRUE, attention_tokens=attention, context_seconds=context)

    found = fit([Measured(firsts(true), tokens(true))], EngineSpec(cache_tokens=10_000))

    assert found.attention_tokens == pytest.approx(attention, abs=1)
    for name in (
        "step_seconds", "decode_seconds", "context_seconds", "prefill_seconds", "request_seconds",
    ):  # fmt: skip
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-3, abs=1e-12)
    assert found.cache_tokens == 10_000


@pytest.mark.parametrize("noise", [1e-15, 1e-12, 1e-9])
@pytest.mark.parametrize("bend", [1, -1])
def test_rounding_errors_are_no_constants(noise: float, bend: int) -> None:
    flat = msgspec.structs.replace(TRUE, attention_tokens=0, context_seconds=0.0)
    bent = [  # the longest prompts a little later than a line through the others, or earlier
        first._replace(seconds=first.seconds * (1 + bend * noise * (first.prompt > 1_000)))
        for first in firsts(flat)
    ]
    drifting = [
        token._replace(seconds=token.seconds * (1 + bend * noise * (token.context > 99)))
        for token in tokens(flat)
    ]

    found = fit([Measured(bent, drifting)], EngineSpec())

    assert (found.attention_tokens, found.context_seconds) == (0, 0.0)


def test_a_machine_that_changes_is_met_in_the_middle() -> None:
    specs = [TRUE.slower(1.1), TRUE.slower(0.9)]

    found = fit([Measured(firsts(spec), tokens(spec)) for spec in specs], EngineSpec())

    for name in ("step_seconds", "decode_seconds", "context_seconds", "prefill_seconds"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.02)


def test_a_time_that_is_far_off_changes_little() -> None:
    measured = [first for first in firsts(TRUE) for _ in range(5)]
    measured[3] = measured[3]._replace(seconds=30.0)

    found = fit([Measured(measured, TOKENS)], TRUE)

    assert found.prefill_seconds == pytest.approx(0.0006, rel=1e-3)
    assert found.scatter == 0.0


def test_how_times_scatter_is_found_in_equal_requests_of_one_minute() -> None:
    drawn = random.Random(1)

    def minute(factor: float) -> Measured:
        spec = TRUE.slower(factor)
        return Measured(
            [
                first._replace(seconds=first.seconds * drawn.lognormvariate(0.0, 0.1))
                for first in firsts(spec)
                for _ in range(30)
            ],
            tokens(spec),
        )

    assert fit([minute(1.0), minute(1.5)], TRUE).scatter == pytest.approx(0.1, rel=0.1)


def test_no_constant_is_negative() -> None:
    falling = [First(0, tokens, 0.1 + tokens * 1e-4 - 2e-8 * tokens**2) for _, tokens in PROMPTS]
    flat = [Tokens(1, 99, 0.02), Tokens(4, 99, 0.019)]

    found = fit([Measured(falling, flat)], EngineSpec())

    assert found.attention_tokens == 0
    assert found.decode_seconds == 0
    assert found.prefill_seconds > 0


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(BenchError, match="three are needed"):
        fit([Measured(firsts(TRUE)[:2], TOKENS)], TRUE)
    with pytest.raises(BenchError, match="two are needed"):
        fit([Measured(firsts(TRUE), TOKENS[:1])], TRUE)


def test_a_simulated_engines_flags_are_its_constants() -> None:
    engine = engine_like(SimulatedEngines(inter_token_ms=10, max_num_seqs=32, blocks=100))

    assert engine.step_seconds + engine.decode_seconds == pytest.approx(0.010)
    assert engine.step_seconds + 32 * engine.decode_seconds == pytest.approx(0.020)
    assert engine.cache_tokens == 3_200


# what was sent


def test_chats_are_simulated_with_the_blocks_that_engines_see() -> None:
    sessions = chats(ChatSpec(sessions=4, turns=3, systems=2, apart=1), 1, "t", rate=2.0)
    prompts = EnginePrompts(str(prepare_smollm2()))
    try:
        made = as_workload(sessions, prompts, 32)
    finally:
        prompts.close()

    assert len(made.requests) == 12
    assert [r.start for r in made.requests] == sorted(at for s in sessions for at in s.at)
    kept = [block for r in made.requests for block in r.answer_blocks]
    assert kept
    assert len(set(kept)) == len(kept)  # nobody else's
    for r in made.requests:
        computed = r.prompt_tokens + r.output_tokens - 1
        assert len(r.blocks) + len(r.answer_blocks) == computed // 32
    by_session: dict[int, list[SimRequest]] = {}
    for request in made.requests:
        by_session.setdefault(request.session, []).append(request)
    for first, second, third in by_session.values():
        shared = first.prompt_tokens // 32 - 1  # its end belongs to the generation prompt
        assert second.blocks[:shared] == first.blocks[:shared]
        assert third.prompt_tokens > second.prompt_tokens > first.prompt_tokens
    assert by_session[0][0].blocks[0] == by_session[2][0].blocks[0]
    assert by_session[0][0].blocks[0] != by_session[1][0].blocks[0]


# the comparison

LATER = SimRequest(blocks=(1, 2), prompt_tokens=250, output_tokens=3, session=1, start=9.0)
WORK = Workload(
    "sent",
    "",
    100,
    [
        SimRequest(blocks=(1, 2), prompt_tokens=250, output_tokens=3, session=1),
        LATER,
    ],
)


def sample(first: float, cached: int, error: str | None = None) -> Sample:
    return Sample(
        session=1, turn=0, intended=0.0, sent=0.0, first=first, last=first + 0.1,
        ended=first + 0.1, prompt_tokens=250, cached_tokens=cached, completion_tokens=3,
        num_deltas=3, error=error,
    )  # fmt: skip


def sent(samples: Sequence[Sample], work: Workload = WORK) -> Sent:
    return Sent("a router", "round-robin", 1, samples, work)


def test_both_are_judged_over_all_requests() -> None:
    fleet = FleetSpec(num_engines=1, num_slow=0, engine=TRUE)

    found = compared(sent([sample(0.2, 0), sample(0.1, 200)]), fleet)

    assert found["ttft"] == pytest.approx(150)
    assert found["cached"] == pytest.approx(40)
    assert found["simulated_cached"] == pytest.approx(40)
    both = TRUE.idle_ttft(250) + TRUE.idle_ttft(250, 200)
    assert found["simulated_ttft"] == pytest.approx(both / 2 * 1e3)
    context = 251 * TRUE.context_seconds  # 250 of the prompt, and one of the answer
    assert found["simulated_itl"] == pytest.approx(23 + context * 1e3)


def test_engines_that_slow_each_other_are_simulated_so() -> None:
    other = SimRequest(blocks=(3, 4), prompt_tokens=250, output_tokens=3, session=2, start=1e-6)
    work = Workload("sent", "", 100, [WORK.requests[0], other])
    engine = msgspec.structs.replace(TRUE, beside=2.0)
    fleet = FleetSpec(num_engines=2, num_slow=0, engine=engine)

    found = compared(sent([sample(0.2, 0)] * 2, work), fleet)

    alone = TRUE.idle_ttft(250)
    step = alone - TRUE.request_seconds
    assert found["simulated_ttft"] == pytest.approx(
        (alone + step / 2) * 1e3
    )  # the second's takes two


def test_engines_that_pause_do_so_while_another_one_computes() -> None:
    engine = msgspec.structs.replace(TRUE, prompt_pauses=1.5, pause_seconds=0.1)
    later = msgspec.structs.replace(WORK.requests[0], blocks=(3, 4), session=2, start=1e-6)
    both = Workload("sent", "", 100, [WORK.requests[0], later])
    fleet = FleetSpec(num_engines=2, num_slow=0, engine=engine)

    ttfts = [
        simulate(both, both.own_rate, fleet, policy_named("round-robin"), seed).ttft
        for seed in range(400)
    ]

    first, second = np.array(ttfts).T - TRUE.idle_ttft(250)
    assert first == pytest.approx(0, abs=1e-9)  # it began when nobody else computed
    assert second.mean() == pytest.approx(0.15, rel=0.2)
    assert (second < 1e-9).mean() == pytest.approx(exp(-1.5), abs=0.07)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.3, 2.0), st.floats(0.05, 1.0), st.floats(0.001, 0.01), st.integers(0, 10**6))
def test_pauses_are_found_again(number: float, seconds: float, scatter: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    apart = rng.normal(0, scatter, 600)
    paused = [rng.exponential(seconds, n).sum() for n in rng.poisson(number, 1_500)]
    together = rng.normal(0, scatter, 1_500) + paused

    found = fit_pauses(apart, together)

    assert found is not None
    assert found.number * found.seconds == pytest.approx(number * seconds, rel=0.25)
    assert seconds * 0.8 < found.seconds < seconds * (1.3 + number / 2)  # some pause twice


@given(st.integers(0, 10**6), st.integers(30, 2_000))
def test_what_comes_by_chance_is_no_pause(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)

    assert fit_pauses(rng.normal(0, 1, 4_000), rng.normal(-0.5, 1, count)) is None


def test_of_engines_whose_times_scatter_many_runs_are_simulated() -> None:
    steady = FleetSpec(num_engines=1, num_slow=0, engine=TRUE)
    engine = msgspec.structs.replace(TRUE, scatter=0.1)
    one = sent([sample(0.2, 0), sample(0.1, 200)])

    outcomes = one.simulated(FleetSpec(num_engines=1, num_slow=0, engine=engine))

    ttfts = [float(outcome.ttft.mean()) for outcome in outcomes]
    assert len(set(ttfts)) == len(ttfts) > 10
    assert fmean(ttfts) == pytest.approx(one.simulated_ttft(steady), rel=0.1)
    assert [o.cached_tokens.tolist() for o in outcomes] == [[0, 200]] * len(outcomes)


@pytest.mark.parametrize(
    "samples", [[sample(0.2, 0)], [sample(0.2, 0), sample(0.2, 0, error="timeout")]]
)
def test_requests_that_failed_are_no_comparison(samples: list[Sample]) -> None:
    with pytest.raises(BenchError, match="requests failed"):
        sent(samples)


def test_sessions_are_simulated_where_they_were() -> None:
    work = Workload("sent", "", 100, [*WORK.requests, msgspec.structs.replace(LATER, session=2)])
    there = replace(sent([sample(0.2, 0)] * 3, work), rows={1: 0, 2: 1})

    [outcome] = there.simulated(FleetSpec(num_engines=2, num_slow=0, engine=TRUE))

    assert outcome.engine.tolist() == [0, 0, 1]


def test_how_much_engines_slow_each_other_is_found_in_what_chats_waited() -> None:
    work = requests_side_by_side(40)
    fleet = FleetSpec(num_engines=2, num_slow=0, engine=TRUE)

    def waited(beside: float) -> float:
        there = sent([sample(0.2, 0)] * 40, work)
        return there.simulated_ttft(fleet.with_beside(beside))

    assert fit_beside(waited(1.3), waited) == pytest.approx(1.3, abs=0.005)
    assert fit_beside(waited(1.0), waited) == 1.0
    with pytest.raises(BenchError, match="a quieter machine"):
        fit_beside(waited(9.0), waited)


def requests_side_by_side(count: int) -> Workload:
    """A little less than two engines of TRUE can do."""
    made = [
        SimRequest(
            blocks=(2 * i, 2 * i + 1), prompt_tokens=250, output_tokens=3, session=i, start=0.2 * i
        )
        for i in range(count)
    ]
    return Workload("sent", "", 100, made)


@pytest.mark.slow
def test_who_has_a_session_is_seen_by_what_engines_count(tmp_path: Path) -> None:
    sessions = chats(ChatSpec(sessions=4, turns=1, systems=1, apart=1), 1, "t", rate=20.0)
    engines = SimulatedEngines(engines=2, prefill_us_per_token=1.0, inter_token_ms=1.0)

    with (
        simulated_fleet(engines, tmp_path) as fleet,
        standing(RoundRobin(), fleet, tmp_path / "router") as one,
    ):
        rows = division(one.place.url, fleet, sessions)

    first, *others = (rows[session.number] for session in sessions)
    assert others == [1 - first, first, 1 - first]


def run(*, is_real: bool) -> Run:
    """A router that is simulated well, and one that is not; two seeds each."""
    same = {"requests": 10, "rate": 1.0, "itl": 10.0, "simulated_itl": 10.0, "cached": 50.0}
    good = {**same, "ttft": 1_000.0, "simulated_ttft": 1_100.0, "simulated_cached": 49.0}
    bad = {**same, "ttft": 1_000.0, "simulated_ttft": 800.0, "simulated_cached": 53.0}
    rows = [
        router_row(name, "round-robin", [seed, seed])
        for name, seed in (("good", good), ("bad", bad))
    ]
    facts = {"engines": "two engines"}
    return a_run("validate", rows, plan={"real": is_real}, facts=facts)


def test_a_simulation_of_real_engines_is_judged_by_its_times_too() -> None:
    real, other = VALIDATE.goals(run(is_real=True)), VALIDATE.goals(run(is_real=False))

    assert [goal.is_met for goal in real] == [True, True, False, False]
    assert [goal.is_met for goal in other] == [True, False]


def test_the_report_says_by_how_much_it_is_off() -> None:
    text = VALIDATE_REAL.markdown(run(is_real=True))

    assert "| good | round-robin | 20 | 1.0 | 1,000 | 1,100 | +10.0% |" in text
    assert "within 15%" in text


@pytest.mark.parametrize(("is_real", "name"), [(True, "validate --real"), (False, "validate")])
def test_a_run_with_real_engines_is_kept_by_itself(is_real: bool, name: str) -> None:
    assert VALIDATE.run_name is not None
    assert VALIDATE.run_name(ValidatePlan(real=is_real)) == name


@pytest.mark.slow
def test_chats_through_a_router_are_compared_with_simulated_ones(tmp_path: Path) -> None:
    engines = SimulatedEngines(engines=2, prefill_us_per_token=1.0, inter_token_ms=1.0)
    few = ChatSpec(sessions=6, turns=2, systems=2, apart=1)
    scenario = Scenario(engines, few, warm_up_requests=2, bisections=1)
    prompts = EnginePrompts(str(prepare_smollm2()))
    try:
        with simulated_fleet(engines, tmp_path) as fleet:
            tour = Tour(scenario, fleet, prompts, tmp_path, unseen)
            tour.measure([RoundRobin()], RoundRobin(), rate=50.0, seeds=1)
    finally:
        prompts.close()

    made = findings(tour, load_after=0.1)

    [row] = made.rows
    assert (row.keys["policy"], row.values["requests"]) == ("round-robin", 12)
    assert row.median("cached") == pytest.approx(row.median("simulated_cached"), abs=10)
    assert made.facts["prefill_seconds"] == 1e-6
    assert any("as given to the engines" in line for line in made.about)
