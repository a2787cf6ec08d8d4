"""Whatever happens between an engine and a gateway: once it is calm, nothing wrong is believed.

300 schedules, always the same in CI. More of them, on all cores: `make chaos`. And what was not
reused is named by its reason, however the events came that tell it.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from tests.chaos.schedules import KINDS, Schedule, run, shortest
from tests.console.records.planted import PLANTS, wrongly_named

SCHEDULES = 300
MISSES = 150
FIRST_SEED = 0 if os.environ.get("CI") else Random().randrange(1_000_000)


def seeds(kind: str) -> range:
    place, kinds = list(KINDS).index(kind), len(KINDS)
    return range(FIRST_SEED, FIRST_SEED + len(range(place, SCHEDULES, kinds)))


@pytest.mark.parametrize("workers", [False, True], ids=["one process", "workers"])
@pytest.mark.parametrize("kind", KINDS)
def test_once_calm_exact_is_the_truth_and_partial_is_nothing_but_the_truth(
    kind: str, workers: bool
) -> None:
    outcomes = [run(Schedule(kind, seed, workers=workers)) for seed in seeds(kind)]

    failures = [outcome for outcome in outcomes if outcome.wrong is not None]
    for failure in failures[:1]:
        pytest.fail(f"{failure.wrong}\nto see it: {shortest(failure.schedule).command}")


def test_there_are_as_many_schedules_as_promised() -> None:
    assert sum(len(seeds(kind)) for kind in KINDS) == SCHEDULES


@pytest.mark.parametrize("trouble", [0.2, 0.8])
async def test_whatever_happens_to_events_misses_are_named_right(trouble: float) -> None:
    first = FIRST_SEED - FIRST_SEED % len(PLANTS)  # each kind as often
    found = [await wrongly_named(seed, trouble) for seed in range(first, first + MISSES)]

    assert not [each for each in found if each is not None]


@pytest.mark.parametrize("kind", ["lost messages", "everything"])
def test_the_same_seed_is_the_same_run_with_workers_and_without(kind: str) -> None:
    def trace(*, workers: bool = False) -> list[str]:
        turns: list[str] = []
        run(Schedule(kind, 3, workers=workers), tell=turns.append)
        return turns

    turns = trace()

    assert len(turns) >= 20
    assert trace() == turns
    assert trace(workers=True) == turns


def test_a_calm_network_leaves_no_kind_of_engine_less_than_exact() -> None:
    """The generator is not so cruel that nothing could be known."""
    outcomes = [run(Schedule("doubled messages", seed)) for seed in range(10)]
    verdicts = [verdict for outcome in outcomes for verdict in outcome.verdicts]

    assert sum(verdict.state == "exact" for verdict in verdicts) >= 5
    assert sum(verdict.true_blocks for verdict in verdicts) > 50
