"""Constants of an engine are found again in what it took."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway_bench.policies.catalog import policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_bench.processes import BenchError
from inferway_bench.whatif.learned import (
    First,
    Tokens,
    fit_pauses,
    fit_prompts,
    fit_times,
    fit_tokens,
    with_constants,
)

TRUE = EngineSpec(
    step_seconds=0.02, decode_seconds=0.003, context_seconds=2e-6, prefill_seconds=0.0006,
    attention_tokens=4_000, request_seconds=0.015, cache_tokens=10_000,
)  # fmt: skip
PROMPTS = [(0, 100), (0, 400), (0, 1_000), (0, 1_600), (512, 900)]


def tokens(spec: EngineSpec) -> list[Tokens]:
    each = {context: spec.decode_seconds + context * spec.context_seconds for context in (99, 900)}
    return [
        Tokens(batch, context, spec.step_seconds + batch * seconds)
        for context, seconds in each.items()
        for batch in (1, 2, 4)
    ]


def firsts(spec: EngineSpec) -> list[First]:
    return [First(cached, prompt, spec.idle_ttft(prompt, cached)) for cached, prompt in PROMPTS]


def fitted(prompts: Sequence[First], answers: Sequence[Tokens]) -> EngineSpec:
    like = EngineSpec(cache_tokens=10_000)
    return with_constants(like, fit_tokens(answers), fit_prompts(prompts))


@pytest.mark.parametrize("attention", [0, 4_000])
@pytest.mark.parametrize("context", [0.0, 2e-6])
def test_constants_are_found_again(attention: int, context: float) -> None:
    true = msgspec.structs.replace(TRUE, attention_tokens=attention, context_seconds=context)

    found = fitted(firsts(true), tokens(true))

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

    found = fitted(bent, drifting)

    assert (found.attention_tokens, found.context_seconds) == (0, 0.0)


def test_a_time_that_is_far_off_changes_little() -> None:
    measured = [first for first in firsts(TRUE) for _ in range(5)]
    measured[3] = measured[3]._replace(seconds=30.0)

    assert fitted(measured, tokens(TRUE)).prefill_seconds == pytest.approx(0.0006, rel=1e-3)


def test_no_constant_is_negative() -> None:
    falling = [First(0, tokens, 0.1 + tokens * 1e-4 - 2e-8 * tokens**2) for _, tokens in PROMPTS]
    flat = [Tokens(1, 99, 0.02), Tokens(4, 99, 0.019)]

    found = fitted(falling, flat)

    assert found.attention_tokens == 0
    assert found.decode_seconds == 0
    assert found.prefill_seconds > 0


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(BenchError, match="three are needed"):
        fit_prompts(firsts(TRUE)[:2])
    with pytest.raises(BenchError, match="two are needed"):
        fit_tokens(tokens(TRUE)[:1])


def test_how_often_engines_pause_is_found_in_what_requests_waited() -> None:
    def simulated(times: float) -> float:
        return 0.1 + 0.05 * times

    assert fit_times(simulated(2.5), simulated) == pytest.approx(2.5, abs=0.03)
    assert fit_times(0.01, simulated) == 1.0
    with pytest.raises(BenchError, match="first tokens came after 1,000 ms"):
        fit_times(1.0, simulated)


def test_engines_that_pause_do_so_while_another_one_computes() -> None:
    engine = msgspec.structs.replace(TRUE, prompt_pauses=1.5, pause_seconds=0.1)
    first = SimRequest(blocks=(1, 2), prompt_tokens=250, output_tokens=3, session=1)
    later = SimRequest(blocks=(3, 4), prompt_tokens=250, output_tokens=3, session=2, start=1e-6)
    both = Workload("both", "", 100, [first, later])
    fleet = FleetSpec(num_engines=2, num_slow=0, engine=engine)

    ttfts = [
        simulate(both, both.own_rate, fleet, policy_named("round-robin"), seed).ttft
        for seed in range(400)
    ]

    alone, beside = np.array(ttfts).T - TRUE.idle_ttft(250)
    assert alone == pytest.approx(0, abs=1e-9)  # it began when nobody else computed
    assert beside.mean() == pytest.approx(0.15, rel=0.2)
    assert (beside < 1e-9).mean() == pytest.approx(exp(-1.5), abs=0.07)


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
