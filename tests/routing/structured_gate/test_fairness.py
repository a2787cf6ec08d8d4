"""Checks of one tenant's shapes do not hold up another's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.routing.structured_gate.doubles import CHAT, Engines, Words, endpoints, make_gate, schema

from inferway.errors import QueueFullError
from inferway.routing.structured_gate.gate import Gate
from inferway.routing.structured_gate.shape import Shape
from inferway_structured.turns import MAX_WAITING, Asker

OURS = Engines(plugins={"e0"})


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def ask(gate: Gate, fields: dict[str, Any], tenant: str) -> asyncio.Task[Shape | None]:
    """It is checked, or waits, when this returns."""
    work = gate.check(CHAT, fields, 100, endpoints("e0"), asker=Asker(tenant))
    task = asyncio.create_task(work)
    await settled()
    return task


async def test_a_small_shape_waits_for_no_large_one() -> None:
    library = Words(hold=asyncio.Event())
    gate = make_gate(OURS, library)
    for number in range(9):
        await ask(gate, schema("costly", str(number)), "flooding")

    await ask(gate, schema("small"), "other")

    assert library.begun == ["costly 0", "costly 1", "small"]


@pytest.mark.parametrize("kind", ["costly", "small"])
async def test_the_next_after_those_under_way_is_another_tenants(kind: str) -> None:
    library = Words(hold=asyncio.Event())
    gate = make_gate(OURS, library)
    floods = [await ask(gate, schema(kind, str(number)), "flooding") for number in range(9)]
    other = await ask(gate, schema(kind, "other"), "other")
    assert library.begun == [f"{kind} 0", f"{kind} 1"]

    library.hold.set()  # type: ignore[union-attr]
    await asyncio.gather(other, *floods)

    assert library.begun.index(f"{kind} other") <= 4


async def test_a_shape_that_is_known_waits_for_nothing() -> None:
    library = Words()
    gate = make_gate(OURS, library)
    assert await gate.check(CHAT, schema("known"), 100, endpoints("e0"))
    library.hold = asyncio.Event()
    for kind in ("costly", "small"):
        for number in range(9):
            await ask(gate, schema(kind, str(number)), "flooding")

    assert (await ask(gate, schema("known"), "other")).done()


async def test_who_asks_the_same_waits_as_one_and_behind_nobody_elses() -> None:
    library = Words(hold=asyncio.Event())
    gate = make_gate(OURS, library)
    for number in range(9):
        await ask(gate, schema("small", str(number)), "flooding")
    same = [await ask(gate, schema("shared"), "flooding") for _ in range(2 * MAX_WAITING)]
    other = await ask(gate, schema("shared"), "other")

    library.hold.set()  # type: ignore[union-attr]
    await asyncio.gather(other, *same)

    assert library.begun.count("shared") <= 2
    assert library.begun.index("shared") <= 4


async def test_beyond_a_bound_the_flooding_tenant_is_refused_and_nobody_else() -> None:
    library = Words(hold=asyncio.Event())
    gate = make_gate(OURS, library)
    floods = [
        await ask(gate, schema("costly", str(number)), "flooding")
        for number in range(MAX_WAITING + 9)
    ]

    others = [await ask(gate, schema("costly", "other", str(number)), "other") for number in "ab"]

    refused = [task for task in floods if task.done()]
    assert len(refused) == 9 - 2 + len(others)
    assert not any(task.done() for task in others)
    for task in refused:
        with pytest.raises(QueueFullError, match="shapes of answers wait to be checked"):
            await task
    assert gate.counts.requests == {("json", "busy"): len(refused)}
    library.hold.set()  # type: ignore[union-attr]
    await asyncio.gather(*[task for task in (*floods, *others) if not task.done()])
