from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from inferway_structured.backends.cascade import MAX_WEIGHT, light_verdict, verdict
from inferway_structured.backends.schemas.weight import weight_of
from inferway_structured.compile.compile_trial import LIMITS, Trial
from inferway_structured.errors import HeavyError, JobKilledError, SpecError
from inferway_structured.sandbox.process import Limits
from inferway_structured.spec import Kind, Spec

SET = Spec(Kind.JSON, '{"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}')
GOOD = [
    SET,
    Spec(Kind.JSON, '{"type":"object","properties":{"a":{"type":"integer"}}}'),
    Spec(Kind.JSON_OBJECT, ""),
    Spec(Kind.REGEX, "(a|b)*a(a|b){12}"),
    Spec(Kind.CHOICE, '["yes","no"]'),
    Spec(Kind.GRAMMAR, 'start: "a" | "b"'),
    Spec(Kind.GRAMMAR, 'root ::= "a" | "b"'),
]
TAG = '{{"structures":[{{"begin":"<a>","schema":{},"end":"</a>"}}],"triggers":["<a>"]}}'
IMPOSSIBLE = Spec(Kind.STRUCTURAL_TAG, TAG.format('{"type":"string","enum":[1]}'))
TOWER = "x"
for _ in range(9):
    TOWER = f'{{"oneOf":[{{"properties":{{"a":{TOWER}}}}},{{"properties":{{"b":{TOWER}}}}}]}}'
TOWER = TOWER.replace("x", '{"type":"string"}')


def apart(num: int) -> dict[str, Any]:
    """Each property may be said in nine ways, which are counted as if they multiplied."""
    any_of = {"anyOf": [{"const": one} for one in range(9)]}
    return {"allOf": [{"properties": {f"p{at}": any_of}} for at in range(num)]}


APART = apart(6)
NODE = {"properties": {"next": {"$ref": "#/$defs/n"}, "v": {"type": "string"}}}
CIRCLE = {**APART, "$defs": {"n": {"allOf": [NODE, {"required": ["v"]}]}}, "$ref": "#/$defs/n"}


@pytest.fixture
def trial() -> Iterator[Trial]:
    made = Trial()
    yield made
    made.close()


@pytest.mark.parametrize("spec", GOOD, ids=lambda spec: f"{spec.kind} {spec.text[:20]}")
async def test_a_trial_finds_what_the_cascade_finds(trial: Trial, spec: Spec) -> None:
    here = verdict(spec)

    there = await trial.verdict(spec)

    assert there == replace(here, unenforced=list(here.unenforced))
    assert there.compile_seconds > 0


@pytest.mark.parametrize("spec", [IMPOSSIBLE, Spec(Kind.REGEX, "(?=a)b")])
async def test_what_no_backend_takes_is_told_with_its_words(trial: Trial, spec: Spec) -> None:
    with pytest.raises(SpecError) as expected:
        verdict(spec)

    with pytest.raises(SpecError) as refused:
        await trial.verdict(spec)

    assert str(refused.value) == str(expected.value)
    assert refused.value.place == expected.value.place
    assert refused.value.keyword == expected.value.keyword


async def test_what_takes_too_much_is_killed_and_the_next_one_is_not() -> None:
    limits = Limits(memory_bytes=24 << 20, cpu_seconds=2, wall_seconds=10.0)
    rules = [f'rule_{n}: "{n}" ("b" "c"){{1,50}}' for n in range(999)]
    start = "start: " + " | ".join(f"rule_{n}" for n in range(999))
    hostile = Spec(Kind.GRAMMAR, "\n".join([start, *rules]))
    with closing(Trial(limits)) as trial:
        with pytest.raises(JobKilledError):
            await trial.verdict(hostile)

        assert (await trial.verdict(GOOD[0])).backend
        assert sum(trial.helper.stats.kills.values()) == 1


def test_the_limits_are_those_that_the_document_names() -> None:
    assert (LIMITS.cpu_seconds, LIMITS.wall_seconds, LIMITS.memory_bytes) == (2, 10.0, 256 << 20)
    assert LIMITS.niceness == 19


@pytest.mark.parametrize(
    ("limits", "limit", "lacked_cpu"),
    [
        (replace(LIMITS, cpu_seconds=0.02), "cpu", False),
        (replace(LIMITS, wall_seconds=0.02), "wall", True),
    ],
)
async def test_too_much_cpu_time_is_the_specs_fault_and_too_long_a_time_the_machines(
    limits: Limits, limit: str, lacked_cpu: bool
) -> None:
    with closing(Trial(limits)) as trial:
        for _ in range(2):
            with pytest.raises(JobKilledError, match=r"took more than 0\.02 s") as killed:
                await trial.verdict(Spec(Kind.JSON, TOWER))
            assert killed.value.lacked_cpu == lacked_cpu

        assert trial.helper.stats.kills == {limit: 2}


@pytest.mark.parametrize("schema", [APART, CIRCLE])
async def test_what_may_multiply_is_tried_where_it_can_be_killed(
    trial: Trial, schema: dict[str, Any]
) -> None:
    spec = Spec(Kind.JSON, json.dumps(schema))
    assert weight_of(spec.text) > MAX_WEIGHT

    with pytest.raises(HeavyError):
        light_verdict(spec)

    assert (await trial.verdict(spec)).unenforced == []


async def test_what_multiplies_is_killed_and_where_no_bound_is_known_it_is_not_tried(
    trial: Trial,
) -> None:
    nested: Any = {"const": 1}
    for _ in range(11):
        nested = {"allOf": [{"prefixItems": [{}, {}, {}]}, {"items": nested}]}
    with pytest.raises(JobKilledError):
        await trial.verdict(Spec(Kind.JSON, json.dumps(nested)))

    with pytest.raises(SpecError, match="multiply"):
        await trial.verdict(Spec(Kind.JSON, json.dumps(apart(400))))
