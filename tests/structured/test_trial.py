from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferway.errors import SpecError
from inferway.helper.process import Limits
from inferway.structured.backends.cascade import verdict
from inferway.structured.spec import Kind, Spec
from inferway.structured.trial import LIMITS, Trial

SET = Spec(Kind.JSON, '{"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}')
TOWER = "x"
for _ in range(9):
    TOWER = f'{{"oneOf":[{{"properties":{{"a":{TOWER}}}}},{{"properties":{{"b":{TOWER}}}}}]}}'
TOWER = TOWER.replace("x", '{"type":"string"}')


@pytest.fixture
def trial() -> Iterator[Trial]:
    made = Trial()
    yield made
    made.close()


def test_a_verdict_is_the_cascades_own(trial: Trial) -> None:
    here = verdict(SET)

    there = trial.verdict(SET, strict=False)

    assert (there.backend, there.unenforced) == (here.backend, list(here.unenforced))


def test_a_refusal_names_its_place_and_keyword(trial: Trial) -> None:
    with pytest.raises(SpecError) as refused:
        trial.verdict(SET, strict=True)

    assert (refused.value.place, refused.value.keyword) == ("/properties/a", "uniqueItems")


def test_what_passes_a_limit_is_refused_and_the_next_one_is_judged() -> None:
    trial = Trial(Limits(memory_bytes=LIMITS.memory_bytes, cpu_seconds=20, wall_seconds=0.02))
    try:
        with pytest.raises(SpecError, match="takes more wall than a compile may use"):
            trial.verdict(Spec(Kind.JSON, TOWER), strict=False)

        assert trial.helper.stats.kills == {"wall": 1}
    finally:
        trial.close()
