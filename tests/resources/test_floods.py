"""What must hold of `make floods` however busy the machine is: all is answered and given back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.resources.floods import (
    MAX_MIB,
    VICTIMS,
    Victims,
    each_late,
    row,
    world,
    wrong,
)
from tests.resources.worlds import resident_kb


@pytest.mark.slow
@pytest.mark.parametrize("name", ["half-sent", "lost", "idle"])
async def test_a_flood_that_ends_leaves_no_memory(name: str, tmp_path: Path) -> None:
    async with world(tmp_path) as one:
        before = resident_kb(one.gateway.pid)
        await one.flood(name, 2)
        left = await one.settled(before)

    assert left / 1024 < MAX_MIB


@pytest.mark.slow
@pytest.mark.parametrize("name", ["long-prompts", "pictures", "schemas", "deep"])
async def test_each_request_of_a_flood_is_answered_and_no_slot_is_left(
    name: str, tmp_path: Path
) -> None:
    async with world(tmp_path) as one:
        answers = await one.flood(name, 2)
        await one.settled(float("inf"))

    assert answers.pop("sent") > 0
    assert answers
    assert set(answers) <= {"200", "400", "429", "503"}


@pytest.mark.slow
async def test_victims_go_on_as_long_as_the_flood_and_each_schema_is_new(tmp_path: Path) -> None:
    async with world(tmp_path) as one:
        calm, flooded = Victims(one), Victims(one)
        for victims in (calm, flooded):
            await victims.watch(one.flood("nobody", 3))
        asked = next(one.numbers)

    taken = [*calm.taken["shape"], *flooded.taken["shape"]]
    assert len(taken) <= asked <= len(taken) + 2
    for victims in (calm, flooded):
        assert (
            sum(victims.taken["stream"]) > 2_000
        )  # milliseconds; an answer of its own length: 0.4


def test_a_pause_delays_each_token_that_was_due_in_it() -> None:
    assert each_late(26.0) == [26.0]
    assert each_late(100.0) == [100.0, 75.0, 50.0, 25.0]


def test_a_victim_that_waits_and_memory_that_stays_are_named() -> None:
    calm = {name: [[1.0, 2.0, 3.0], [1.5, 20.0, 30.0]] for name in VICTIMS}
    well = {"flood": "f", "mb_per_second": 2.5, **calm, "peak_mib": 100, "left_mib": 1}

    assert wrong(well) == []
    assert row(well).startswith("| f | 2.5 | 1/2/3 → 1.5/20/30 |")
    assert len(wrong({**well, "chat": [[1.0, 2.0, 3.0], [1.0, 151.0, 152.0]]})) == 1
    assert len(wrong({**well, "left_mib": 65})) == 1
