"""Planted misses are named right, and what is wrong with a picture is forgotten."""

from __future__ import annotations

import pytest
from tests.console.records.planted import PLANTS, SIZE, World, wrongly_named

from inferway_console.records.shortfalls import REPAIR_AFTER

PLANTED = 150


async def test_planted_misses_are_named_right() -> None:
    wrong = [await wrongly_named(seed) for seed in range(PLANTED)]

    assert not [each for each in wrong if each is not None]


def test_all_kinds_are_planted() -> None:
    assert PLANTED >= 100
    assert 2 * len(PLANTS) <= PLANTED


@pytest.mark.parametrize("seed", range(5))
async def test_what_reuses_all_that_it_could_has_missed_nothing(seed: int) -> None:
    world = World(seed)
    tokens = world.tokens(world.random.randint(1, 30))
    await world.store(world.places[0], tokens)

    record = await world.answered(await world.ask(tokens, 0))

    assert record.missed == ()
    assert record.delivered_tokens == record.chosen_blocks * SIZE


async def test_a_picture_that_is_wrong_again_and_again_is_repaired() -> None:
    world = World(1)
    place, tokens = world.places[0], world.tokens(8)
    keys = world.keys(tokens)
    await world.store(place, tokens)
    await world.drop(place, keys[3:], told=False)
    for _ in range(REPAIR_AFTER - 1):
        await world.answered(await world.ask(tokens, 0))
    assert (await world.index.match(keys)).blocks == {0: 8}

    await world.answered(await world.ask(tokens, 0))

    assert (await world.index.match(keys)).blocks == {0: 3}
    assert place.stream.rechecks == 1
    assert world.shortfalls.repairs == {"e0": 1}
    record = await world.answered(await world.ask(tokens, 0))
    assert record.missed == ()


async def test_an_engine_that_never_reuses_the_last_block_is_known_to_draft() -> None:
    world = World(3)
    place = world.places[0]
    for _ in range(REPAIR_AFTER):
        tokens = world.tokens(8)
        await world.store(place, tokens)
        place.true.discard(world.keys(tokens)[-1])  # as if: it is computed again for the draft
        await world.answered(await world.ask(tokens, 0))

    assert place.stream.drops == 1
    assert world.shortfalls.repairs == {}
    assert (await world.index.match(world.keys(tokens))).blocks == {0: 8}


async def test_nothing_is_forgotten_while_an_engine_that_misses_last_blocks_may_draft() -> None:
    """Most prompts share a beginning, at which several are short."""
    world = World(3)
    place = world.places[0]
    prompts = [world.tokens(8) for _ in range(REPAIR_AFTER)]
    for tokens in prompts:
        await world.store(place, tokens)
        place.true.discard(world.keys(tokens)[-1])
    for tokens in (*prompts[:1] * (REPAIR_AFTER - 1), prompts[1]):
        await world.answered(await world.ask(tokens, 0))
    assert (place.stream.drops, world.shortfalls.repairs) == (0, {})

    await world.answered(await world.ask(prompts[2], 0))

    assert (place.stream.drops, world.shortfalls.repairs) == (1, {})


async def test_one_block_that_is_missing_again_and_again_is_no_draft() -> None:
    world = World(4)
    place, tokens = world.places[0], world.tokens(8)
    await world.store(place, tokens)
    await world.drop(place, world.keys(tokens)[-1:], told=False)
    for _ in range(REPAIR_AFTER):
        await world.answered(await world.ask(tokens, 0))

    assert place.stream.drops == 0
    assert world.shortfalls.repairs == {"e0": 1}


async def test_innocent_misses_do_not_repair_anything() -> None:
    world = World(2)
    place, tokens = world.places[0], world.tokens(8)
    for _ in range(2 * REPAIR_AFTER):
        await world.store(place, tokens)
        asked = await world.ask(tokens, 0)
        await world.drop(place, asked.true_keys)
        await world.answered(asked)

    assert place.stream.rechecks == 0
    assert world.shortfalls.repairs == {}
