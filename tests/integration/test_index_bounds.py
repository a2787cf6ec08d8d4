"""An index with less room than the engine has: it forgets, and believes nothing wrong."""

from __future__ import annotations

from random import Random

from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until

from inferway.config import IndexSettings
from inferway.kv.index.memory import MemoryIndex

ROOM = 1000  # blocks
LENGTH = 50  # blocks of a prompt, about


async def all_is_heard(fleet: Fleet, number: int) -> None:
    """A prompt that the engine has never seen: when it is known, so is all that came before."""
    prompt = f"never seen {number}: {LONG}"
    await fleet.chat(prompt, max_tokens=1)

    async def is_known() -> bool:
        return max((await fleet.scores(prompt)).values()) > 3

    await until(is_known)


async def test_a_bounded_index_stays_below_its_bound_and_true(start_fleet: StartFleet) -> None:
    """The engine holds twice as much, and evicts as well."""
    settings = IndexSettings(max_blocks=ROOM)
    fleet = await start_fleet([simulated(kv_cache_size=2 * ROOM)], index=settings)
    [engine], index = fleet.engines, fleet.gateway.index
    assert isinstance(index, MemoryIndex)
    prompts = [f"{i}: {LONG * 10}" for i in range(3 * ROOM // LENGTH)]
    forgotten = 0
    for number, prompt in enumerate([*prompts, *Random(1).choices(prompts, k=100)]):
        [believed] = (await fleet.scores(prompt)).values()
        answer = await fleet.chat(prompt, max_tokens=1)
        assert answer.reusable(believed) <= answer.cached_tokens
        forgotten += answer.reusable(believed) < answer.cached_tokens
        await all_is_heard(fleet, number)
        assert index.num_keys <= ROOM

    assert len(engine.cached_blocks()) > 1.9 * ROOM
    assert forgotten > 10
    assert await fleet.metric("inferway_index_evicted_total") > ROOM
    assert ROOM / 2 < await fleet.metric("inferway_index_blocks") <= ROOM
    assert await fleet.metric("inferway_index_bytes") > 0
    assert await fleet.metric("inferway_stream_state", state="partial") == 1
