"""Constants of an engine are found again in what it took."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from inferway_bench.policies.engine import EngineSpec
from inferway_bench.processes import BenchError
from inferway_bench.whatif.learned import (
    First,
    Tokens,
    fit_prompts,
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
