"""A gateway that joins late, without a replay: chats it routes tell what the engine had before."""

from __future__ import annotations

from itertools import count

import pytest
from tests.integration.conftest import LONG, Answer, Fleet, StartFleet, simulated, until

from inferway.config import EngineSettings
from inferway_sim.config import EventsConfig

NO_REPLAY = EventsConfig(replay_endpoint=None)
EARLIER = LONG * 3
TURN = "And how sure are you of that? " * 8


async def late_gateway(start_fleet: StartFleet, **fields: object) -> tuple[Fleet, Fleet, Answer]:
    """One that was there when an engine cached `EARLIER`, one that was not and has seen how the
    engine hashes since, and the first one's answer."""
    first = await start_fleet([simulated(events=NO_REPLAY, **fields)])
    answer = await first.chat(EARLIER)
    late = await start_fleet([], more=[EngineSettings(url=first.engines[0].url)])
    words = count()

    async def knows_the_dialect() -> bool:
        await late.chat(f"Something else, {next(words)}: {LONG}", max_tokens=1)
        return await late.metric("inferway_hash_dialect_info", state="found") == 1

    await until(knows_the_dialect)
    return first, late, answer


def said(answer: Answer) -> str:
    return str(answer.body["choices"][0]["message"]["content"])


async def believes_no_more_than_there_is(late: Fleet, first: Fleet) -> bool:
    """Blocks are only those that the engine really has."""
    believed = await late.metric("inferway_index_blocks")
    return bool(believed <= len(first.engines[0].cached_blocks()))


@pytest.mark.parametrize("seed", ["vllm-none-hash", "0"])
async def test_a_longer_chat_tells_what_was_cached_before(
    start_fleet: StartFleet, seed: str
) -> None:
    first, late, answer = await late_gateway(start_fleet, hash_seed=seed)
    assert list((await late.scores(EARLIER)).values()) == [1]  # the start of all chats

    longer = await late.chat(EARLIER, said(answer), TURN)

    assert longer.cached_tokens > longer.expected_tokens
    blocks = int(longer.headers["x-inferway-prompt-blocks"])

    async def known() -> bool:
        return list((await late.scores(EARLIER, said(answer), TURN)).values()) == [blocks]

    await until(known)
    again = await late.chat(EARLIER, said(answer), TURN)
    assert again.expected_tokens == again.cached_tokens > longer.cached_tokens
    assert await late.metric("inferway_blocks_adopted_total") > 0
    assert await believes_no_more_than_there_is(late, first)


async def test_so_does_a_chat_with_an_adapter_and_a_salt(start_fleet: StartFleet) -> None:
    first, late, _ = await late_gateway(start_fleet, lora_modules={"alice": "/adapters/alice"})
    alice = {"model": "alice", "cache_salt": "tenant"}
    answer = await first.chat(EARLIER, **alice)
    orphans = await late.metric("inferway_blocks_orphaned_total")

    longer = await late.chat(EARLIER, said(answer), TURN, **alice)

    assert longer.expected_tokens <= longer.cached_tokens
    blocks = int(longer.headers["x-inferway-prompt-blocks"])

    async def known() -> bool:
        found = await late.scores(EARLIER, said(answer), TURN, **alice)
        return list(found.values()) == [blocks]

    await until(known)
    assert await late.metric("inferway_blocks_orphaned_total") == orphans
    assert await believes_no_more_than_there_is(late, first)


async def test_what_the_engine_has_dropped_since_is_not_believed(start_fleet: StartFleet) -> None:
    """Little room: while chats grow, others drive them out, with or without our knowing of them."""
    first, late, _ = await late_gateway(start_fleet, kv_cache_size=700)
    chats: list[list[str]] = [[f"{i}. {EARLIER}"] for i in range(4)]
    for turn in range(4):
        for chat in chats:
            via = first if turn % 2 == 0 else late
            answer = await via.chat(*chat)
            if via is late:
                assert answer.expected_tokens <= answer.cached_tokens
            chat += [said(answer), f"{turn} {TURN}"]

    assert await late.metric("inferway_blocks_orphaned_total") > 0
    for chat in chats:
        answer = await late.chat(*chat)
        assert answer.expected_tokens <= answer.cached_tokens


async def test_a_random_seed_shows_in_ready_with_its_cure(start_fleet: StartFleet) -> None:
    first = await start_fleet([simulated(events=NO_REPLAY, hash_seed="random")])

    async def is_said() -> bool:
        await first.chat(f"{next(words)}: {LONG}", max_tokens=1)
        [engine] = (await first.get("/ready")).body["engines"]
        return any("set PYTHONHASHSEED=0" in problem for problem in engine["problems"])

    words = count()
    await until(is_said)
    assert await first.metric("inferway_hash_dialect_info", state="none") == 1
