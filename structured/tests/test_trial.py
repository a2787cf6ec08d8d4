from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from inferway_structured.backends.cascade import MAX_WEIGHT, light_verdict, verdict
from inferway_structured.backends.schemas.weight import weight_of
from inferway_structured.errors import ChecksBusyError, HeavyError, SpecError
from inferway_structured.helper.process import Limits
from inferway_structured.spec import Kind, Spec
from inferway_structured.trial import LIMITS, Trial

SET = Spec(Kind.JSON, '{"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}')
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


def test_a_verdict_is_the_cascades_own(trial: Trial) -> None:
    here = verdict(SET)

    there = trial.verdict(SET)

    assert (there.backend, there.unenforced) == (here.backend, list(here.unenforced))


def test_a_refusal_names_its_place_and_keyword(trial: Trial) -> None:
    with pytest.raises(SpecError) as refused:
        trial.verdict(IMPOSSIBLE)

    assert refused.value.place == "/structures/0/schema"


@pytest.mark.parametrize(
    ("limits", "limit", "error", "words"),
    [
        (replace(LIMITS, cpu_seconds=0.02), "cpu", SpecError, "took more than 0.02 s of CPU time"),
        (replace(LIMITS, wall_seconds=0.02), "wall", ChecksBusyError, "0.02 s, for lack of CPU"),
    ],
)
def test_too_much_cpu_time_is_the_specs_fault_and_too_long_a_time_the_machines(
    limits: Limits, limit: str, error: type[Exception], words: str
) -> None:
    with closing(Trial(limits)) as trial:
        for _ in range(2):
            with pytest.raises(error, match=words):
                trial.verdict(Spec(Kind.JSON, TOWER))

        assert trial.helper.stats.kills == {limit: 2}


@pytest.mark.parametrize("schema", [APART, CIRCLE])
def test_what_may_multiply_is_tried_where_it_can_be_killed(
    trial: Trial, schema: dict[str, Any]
) -> None:
    spec = Spec(Kind.JSON, json.dumps(schema))
    assert weight_of(spec.text) > MAX_WEIGHT

    with pytest.raises(HeavyError):
        light_verdict(spec)

    assert trial.verdict(spec).unenforced == []


def test_what_multiplies_is_refused_and_where_no_bound_is_known_it_is_not_tried(
    trial: Trial,
) -> None:
    nested: Any = {"const": 1}
    for _ in range(11):
        nested = {"allOf": [{"prefixItems": [{}, {}, {}]}, {"items": nested}]}
    with pytest.raises(SpecError, match="compiling it"):
        trial.verdict(Spec(Kind.JSON, json.dumps(nested)))

    with pytest.raises(SpecError, match="multiply"):
        trial.verdict(Spec(Kind.JSON, json.dumps(apart(400))))
