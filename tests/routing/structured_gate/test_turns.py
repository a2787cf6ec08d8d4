"""Who goes next when work on shapes waits."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from inferway.errors import QueueFullError, SaturatedError, WaitTooLongError
from inferway.routing.structured_gate.turns import FairTurns
from inferway_structured.turns import MAX_WAITING, WAIT_SECONDS, Asker


class Work:
    """Pieces of work that end when they are told to."""

    def __init__(self, turns: FairTurns) -> None:
        self.turns = turns
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def ask(self, name: str, tenant: str, priority: int = 0) -> asyncio.Task[None]:
        """It has begun, or waits, when this returns."""
        task = asyncio.create_task(self._do(name, Asker(tenant, priority)))
        await settled()
        return task

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settled()

    async def _do(self, name: str, asker: Asker) -> None:
        async with self.turns.turn(asker):
            self.begun.append(name)
            end = self._ends[name] = asyncio.Event()
            await end.wait()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_tenant_that_floods_is_served_once_between_two_of_another() -> None:
    work = Work(FairTurns(1, MAX_WAITING, WAIT_SECONDS))
    for name in ("a0", "a1", "a2", "a3", "a4"):
        await work.ask(name, "a")
    for name in ("b0", "b1"):
        await work.ask(name, "b")

    for _ in range(6):
        await work.end(work.begun[-1])

    assert work.begun == ["a0", "a1", "b0", "a2", "b1", "a3", "a4"]


async def test_a_higher_priority_goes_first() -> None:
    work = Work(FairTurns(1, MAX_WAITING, WAIT_SECONDS))
    for name, priority in (("a0", 0), ("a1", 0), ("b0", 1)):
        await work.ask(name, name[0], priority)

    await work.end("a0")

    assert work.begun == ["a0", "b0"]


async def test_who_floods_is_refused_and_makes_room_for_others() -> None:
    work = Work(FairTurns(1, 2, WAIT_SECONDS))
    tasks = [await work.ask(f"a{number}", "a") for number in range(4)]

    await work.ask("b0", "b")

    with pytest.raises(QueueFullError, match="2 shapes of answers wait to be checked"):
        await tasks[3]
    with pytest.raises(QueueFullError):
        await tasks[2]  # the newest of those who waited
    await work.end("a0")
    assert work.begun == ["a0", "a1"]
    await work.end("a1")
    assert work.begun == ["a0", "a1", "b0"]
    assert QueueFullError.status == 429


async def test_nobody_waits_for_long() -> None:
    turns = FairTurns(1, MAX_WAITING, 0.01)
    work = Work(turns)
    await work.ask("a0", "a")

    with pytest.raises(WaitTooLongError, match=r"for 0\.01 s"):
        await (await work.ask("b0", "b"))

    assert turns.num_waiting == 0


@pytest.mark.parametrize("has_begun", [False, True])
async def test_who_is_cancelled_leaves_its_turn_to_the_next(has_begun: bool) -> None:
    work = Work(FairTurns(1, MAX_WAITING, WAIT_SECONDS))
    first = await work.ask("a0", "a")
    second = await work.ask("b0", "b")
    await work.ask("c0", "c")

    gone = first if has_begun else second
    gone.cancel()
    with suppress(asyncio.CancelledError, SaturatedError):
        await gone
    await settled()
    if not has_begun:
        await work.end("a0")

    assert work.begun == (["a0", "b0"] if has_begun else ["a0", "c0"])


async def test_who_is_cancelled_when_its_turn_has_come_gives_it_on() -> None:
    work = Work(FairTurns(1, MAX_WAITING, WAIT_SECONDS))
    await work.ask("a0", "a")
    second = await work.ask("b0", "b")
    await work.ask("c0", "c")

    work._ends["a0"].set()
    await asyncio.sleep(0)  # a0 has left, and b0 does not know yet
    second.cancel()
    await settled()

    assert work.begun[-1] == "c0"
