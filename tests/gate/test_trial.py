from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferway.errors import JobKilledError, SpecError
from inferway.gate.trial import TrialCompile
from inferway_structured.backends import cascade
from inferway_structured.helper.process import Limits
from inferway_structured.spec import Kind, Spec
from inferway_structured.trial import LIMITS

GOOD = [
    Spec(Kind.JSON, '{"type":"object","properties":{"a":{"type":"integer"}}}'),
    Spec(Kind.JSON, '{"type":"array","uniqueItems":true,"items":{"type":"integer"}}'),
    Spec(Kind.JSON_OBJECT, ""),
    Spec(Kind.REGEX, "(a|b)*a(a|b){12}"),
    Spec(Kind.CHOICE, '["yes","no"]'),
    Spec(Kind.GRAMMAR, 'start: "a" | "b"'),
    Spec(Kind.GRAMMAR, 'root ::= "a" | "b"'),
]


@pytest.fixture(scope="module")
def trial() -> Iterator[TrialCompile]:
    trial = TrialCompile()
    yield trial
    trial.close()


@pytest.mark.parametrize("spec", GOOD, ids=lambda spec: f"{spec.kind} {spec.text[:20]}")
async def test_a_trial_finds_what_the_cascade_finds(trial: TrialCompile, spec: Spec) -> None:
    found = await trial.verdict(spec)

    assert (found.backend, list(found.unenforced)) == (
        cascade.verdict(spec).backend,
        list(cascade.verdict(spec).unenforced),
    )
    assert found.compile_ms > 0


async def test_what_no_backend_takes_is_told_with_its_words(trial: TrialCompile) -> None:
    spec = Spec(Kind.REGEX, "(?=a)b")
    with pytest.raises(SpecError) as expected:
        cascade.verdict(spec)

    with pytest.raises(SpecError) as e:
        await trial.verdict(spec)

    assert str(e.value) == str(expected.value)
    assert (e.value.place, e.value.keyword) == (expected.value.place, expected.value.keyword)


async def test_what_takes_too_much_is_killed_and_the_next_one_is_not() -> None:
    limits = Limits(memory_bytes=24 << 20, cpu_seconds=2, wall_seconds=10.0)
    trial = TrialCompile(limits)
    hostile = Spec(Kind.JSON, '{"type":"array","maxItems":400000,"items":{"type":"integer"}}')
    try:
        with pytest.raises(JobKilledError):
            await trial.verdict(hostile)

        assert (await trial.verdict(GOOD[0])).backend
        assert sum(trial.helper.stats.kills.values()) == 1
    finally:
        trial.close()


def test_the_limits_are_those_that_the_document_names() -> None:
    assert (LIMITS.cpu_seconds, LIMITS.wall_seconds, LIMITS.memory_bytes) == (2, 10.0, 256 << 20)
    assert LIMITS.niceness == 19
