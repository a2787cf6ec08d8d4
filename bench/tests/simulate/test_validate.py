"""`inferway bench validate`: constants from measurements, and the comparison."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import msgspec
import pytest
from bench.tests.peers.test_run import RoundRobin
from bench.tests.test_report import MACHINE

from inferway.prompts.prepare import prepare_smollm2
from inferway_bench.engine_prompts import EnginePrompts
from inferway_bench.loading.samples import Sample
from inferway_bench.peers.fleets import simulated_fleet
from inferway_bench.peers.plan import RealEngines, SimulatedEngines
from inferway_bench.peers.standing import standing
from inferway_bench.peers.workload import ChatSpec, chats
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.processes import BenchError
from inferway_bench.results import read_run, write_run
from inferway_bench.simulate.beside import fit_beside
from inferway_bench.simulate.compared import Compared, Sent, compared
from inferway_bench.simulate.division import division
from inferway_bench.simulate.fitting import First, Measured, Tokens, fit
from inferway_bench.simulate.sent import as_workload
from inferway_bench.simulate.validate import engine_like
from inferway_bench.simulate.validated import VALIDATE, VALIDATE_REAL, Plan, ValidateRun

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

    assert found.ttft == pytest.approx(0.15)
    assert found.cached_share == pytest.approx(0.4)
    assert found.simulated_cached_share == pytest.approx(0.4)
    assert found.cached_points == pytest.approx(0.0)
    both = TRUE.idle_ttft(250) + TRUE.idle_ttft(250, 200)
    assert found.simulated_ttft == pytest.approx(both / 2)
    context = 251 * TRUE.context_seconds  # 250 of the prompt, and one of the answer
    assert found.simulated_token_seconds == pytest.approx(0.023 + context)


def test_engines_that_slow_each_other_are_simulated_apart_as_well() -> None:
    other = SimRequest(blocks=(3, 4), prompt_tokens=250, output_tokens=3, session=2, start=1e-6)
    work = Workload("sent", "", 100, [WORK.requests[0], other])
    engine = msgspec.structs.replace(TRUE, beside=2.0)
    fleet = FleetSpec(num_engines=2, num_slow=0, engine=engine)

    found = compared(sent([sample(0.2, 0)] * 2, work), fleet)

    alone = TRUE.idle_ttft(250)
    assert found.apart_ttft == pytest.approx(alone)
    step = alone - TRUE.request_seconds
    assert found.simulated_ttft == pytest.approx(alone + step / 2)  # the second's takes two


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

    def carried(beside: float) -> list[Sent]:
        there = sent([sample(0.2, 0)] * 40, work)
        [outcome] = there.simulated(fleet.with_beside(beside))
        return [replace(there, samples=[sample(ttft, 0) for ttft in outcome.ttft.tolist()])]

    assert fit_beside(carried(1.3), fleet) == pytest.approx(1.3, abs=0.005)
    assert fit_beside(carried(1.0), fleet) == 1.0
    with pytest.raises(BenchError, match="a quieter machine"):
        fit_beside(carried(9.0), fleet)


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


def found(router: str, real: float, simulated: float, cached: float, like: float) -> Compared:
    return Compared(
        router=router, policy="round-robin", seed=1, requests=10, rate=1.0, ttft=real,
        simulated_ttft=simulated, ttft_p90=real, simulated_ttft_p90=simulated,
        cached_share=cached, simulated_cached_share=like, token_seconds=0.01,
        simulated_token_seconds=0.01,
    )  # fmt: skip


def run(*, is_fitted: bool) -> ValidateRun:
    good, bad = found("good", 1.0, 1.1, 0.5, 0.49), found("bad", 1.0, 0.8, 0.5, 0.53)
    return ValidateRun(
        machine=MACHINE,
        command="inferway bench validate",
        plan=Plan(RealEngines() if is_fitted else SimulatedEngines(), ChatSpec(), 2.0),
        engine=TRUE,
        is_fitted=is_fitted,
        compared=[good, bad],
        load_after=0.1,
        fitted_to=(found("good", 0.5, 0.499, 0.5, 0.5),) if is_fitted else (),
    )


def test_a_simulation_of_real_engines_is_judged_by_its_times_too() -> None:
    assert [goal.is_met for goal in run(is_fitted=True).goals()] == [True, True, False, False]
    assert [goal.is_met for goal in run(is_fitted=False).goals()] == [True, False]


def test_a_validation_is_read_as_it_was_written() -> None:
    there = run(is_fitted=True)

    assert read_run(write_run("validate", there), ValidateRun) == there


def test_the_report_says_by_how_much_it_is_off() -> None:
    text = VALIDATE_REAL.markdown(run(is_fitted=True))

    assert "| good | round-robin | 10 | 1.0 | 1,000 | 1,100 | +10.0% |" in text
    assert "15 %" in text or "15%" in text
    assert "TTFT in ms, simulated / measured: 499 / 500" in text
    assert VALIDATE.file == "validate"
    assert VALIDATE_REAL.file == "validate_real"
